# LeJEPA, a vision transformer of 4 blocks with 96 channels on tubelets of 2 frames and 8x8 pixels
# of which a training step computes only 5 %, 4 frames at 64x64, on a folder of your own videos.
# Paper:    none with this network. LeVJEPA (arXiv 2608.27395, levjepa.github.io) drops 95 % of the
#           tokens at random (47.6 % on ImageNet, 33.9 % with all tokens). It also has a class
#           token, block-causal attention, one global and four or more local views, and lambda 0.02.
#           This recipe uses the objective and views of lejepa_r3d18_folder_small.py, and the
#           network and optimiser of sce_vit_folder_small.py.
# Run:      python tools/train.py configs/lejepa/lejepa_vit_folder_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/lejepa/lejepa_vit_folder_small.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos.
# Expected: not measured yet.

_base_ = "lejepa_r3d18_folder_small.py"

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
        keep_tokens=0.05,  # keeps 6 of 128 tokens
    )
)
data_preprocessor = dict(channels_last=False)
optim_wrapper = dict(
    constructor="NoNormDecayConstructor",
    paramwise_cfg=dict(no_decay=["bias", "position_time", "position_space"]),
    optimizer=dict(lr=5e-4, weight_decay=0.1),
)
