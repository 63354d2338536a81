# All methods on a folder of your own videos. They are pretrained with the small recipes without
# labels, and evaluated (kNN, linear probe, retrieval) on two folders with one sub-folder per class.
# Paper:    none.
# Run:      sce-video sweep configs/sweeps/folder_methods.py --out work_dirs/my_methods \
#               --pretrain-options train_dataloader.dataset.data_root=/path/to/videos \
#               --evaluate-options test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
#           For more seeds, use --seeds 0 1 2, and for fewer methods --points random SCE BYOL.
# Hardware: 2 CPU cores, 4 GB; eight pretrainings of 2000 steps for up to 320 videos.

title = "methods on one folder"
pretrain = dict(config="configs/sce/sce_r3d18_folder_small.py")
points = [
    dict(name="random", checkpoint="random", note="no pretraining"),
    dict(name="SCE", config="configs/sce/sce_r3d18_folder_small.py"),
    dict(name="MoCo v2", config="configs/moco/moco_r3d18_folder_small.py"),
    dict(name="MoCo v3", config="configs/moco_v3/moco_v3_r3d18_folder_small.py"),
    dict(name="ReSSL", config="configs/ressl/ressl_r3d18_folder_small.py"),
    dict(name="SimCLR", config="configs/simclr/simclr_r3d18_folder_small.py"),
    dict(name="BYOL", config="configs/byol/byol_r3d18_folder_small.py"),
    dict(name="SwAV", config="configs/swav/swav_r3d18_folder_small.py"),
    dict(name="LeJEPA", config="configs/lejepa/lejepa_r3d18_folder_small.py"),
]
columns = [
    dict(name="kNN", metric="knn_top1"),
    dict(name="linear", metric="linear_top1"),
    dict(name="R@1", metric="retrieval_r1"),
]
