# SCE, a vision transformer of 4 blocks with 96 channels on tubelets of 2 frames and 8x8 pixels, 4
# frames at 64x64, on a folder of your own videos. It replaces the network of
# sce_r3d18_folder_small.py.
# Paper: none. The network follows ViT (arXiv 2010.11929) and ViViT, model 1 (arXiv 2103.15691).
#        VisionTransformer3d() is ViT-S, and embed_dims=768 with num_heads=12 is ViT-B. Both need
#        patches of 16x16 pixels in views at 224x224, and far more videos.
# Run:      python tools/train.py configs/sce/sce_vit_folder_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_vit_folder_small.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos, each of three times the CPU time of
#           sce_r3d18_folder_small.py.
# Expected: not measured yet.

_base_ = "sce_r3d18_folder_small.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="VisionTransformer3d",
        depth=4,
        embed_dims=96,
        num_heads=4,
        patch_size=8,
        tubelet_size=2,
        grid_size=(2, 8, 8),  # 4 frames of 64x64
    )
)
data_preprocessor = dict(channels_last=False)
# As in MoCo v3 for transformers (arXiv 2104.02057, section 4.3), the learning rate is smaller and
# the decay larger, except for norms, biases and positions.
optim_wrapper = dict(
    constructor="NoNormDecayConstructor",
    paramwise_cfg=dict(no_decay=["bias", "position_time", "position_space"]),
    optimizer=dict(lr=5e-4, weight_decay=0.1),
)
