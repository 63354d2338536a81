# SCE, ResNet-18 (2-D) run on every frame of a clip, on a folder of your own videos.
# Paper: none. It is the folder recipe with an image encoder, which averages the features of 8
#        frames.
# Run:      python tools/train.py configs/sce/sce_r18_frames_folder.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_r18_frames_folder.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
#           CHECKPOINT may come from configs/sce/sce_r18_image_folder.py, which applies an image
#           encoder to video.
# Hardware: 1 GPU of 24 GB with --amp; otherwise as for configs/sce/sce_r3d18_folder.py.
# Expected: depends on the videos; not measured yet.

_base_ = "./sce_r3d18_folder.py"

model = dict(backbone=dict(_delete_=True, type="ResNet2d", depth=18))
# ImageNet's statistics, as in the image recipe.
data_preprocessor = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
