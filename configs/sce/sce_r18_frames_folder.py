# SCE, ResNet-18 (2-D) run on every frame of a clip, on a folder of your own videos.
# Paper: none; the folder recipe with an image encoder: features of the 8 frames are averaged.
# Run:      python tools/train.py configs/sce/sce_r18_frames_folder.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_r18_frames_folder.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
#           CHECKPOINT may be one of configs/sce/sce_r18_image_folder.py: an image encoder on video
# Hardware: 1 GPU of 24 GB with --amp; else as for configs/sce/sce_r3d18_folder.py.
# Expected: depends on the videos; none measured yet.

_base_ = "./sce_r3d18_folder.py"

model = dict(backbone=dict(_delete_=True, type="ResNet2d", depth=18))
# As the image recipe: ImageNet's statistics.
data_preprocessor = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
