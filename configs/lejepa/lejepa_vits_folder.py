# LeJEPA, ViT-S on tokens of 1x16x16 pixels of which a training step computes only 5 %, 16 frames of
# 224x224, on a folder of your own videos.
# Paper:    LeVJEPA (arXiv 2608.27395; README of MLO-lab/LeVJEPA) in parts: 16 frames at 7.5 per
#           second, tokens of single frames, 5 % of them at random, embeddings of 256, lambda 0.02,
#           learning rate 4e-4, weight decay 0.04. It does not use LeVJEPA's class token,
#           block-causal attention, batch of 3072 and views (one of 224 and ten of 96 pixels), but
#           two views with SCE's augmentation.
# Run:      python tools/train.py configs/lejepa/lejepa_vits_folder.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/lejepa/lejepa_vits_folder.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 1 GPU; the loader limits the speed, not the network.
# Expected: not measured yet.

_base_ = "../sce/sce_r3d18_folder.py"

model = dict(
    _delete_=True,
    type="LeJEPA",
    backbone=dict(
        type="VisionTransformer3d",
        depth=12,
        embed_dims=384,
        num_heads=6,
        patch_size=16,
        tubelet_size=1,
        grid_size=(16, 14, 14),
        keep_tokens=0.05,  # keeps 157 of 3136 tokens
        with_cp=False,
    ),
    projector=dict(
        type="MLP",
        hidden_channels=1024,
        out_channels=256,
        num_layers=3,
        norm_output=False,
        bias_output=True,
    ),
    joint_views=True,
    lambda_=0.02,
    num_directions=1024,
)
fit_queue = False  # there is no queue
custom_hooks = dict(ScheduleHook=dict(model=None))  # no momentum to schedule
optim_wrapper = dict(
    constructor="NoNormDecayConstructor",
    paramwise_cfg=dict(no_decay=["bias", "position_time", "position_space"]),
    optimizer=dict(lr=4e-4, weight_decay=0.04),
)
train_dataloader = dict(
    batch_size=128,
    dataset=dict(pipeline=dict(RandomClips=dict(clip_duration=2.13, num_frames=16))),
)

evaluation_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.13, num_frames=16, num_clips=4),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=224),
    dict(type="CenterCropClips", size=224),
    dict(type="PackClips"),
]
test_dataloader = dict(dataset=dict(pipeline=evaluation_pipeline))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=evaluation_pipeline)))
