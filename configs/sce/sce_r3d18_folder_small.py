# SCE, ResNet3D-18 with 8 channels in the stem, 4 frames at 64x64, on a folder of your own videos,
# for a CPU, small videos or a first look.
# Paper: none. It is a small version of sce_r3d18_folder.py with half as many frames at the same
#        distance (0.32 s).
# Run:      python tools/train.py configs/sce/sce_r3d18_folder_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_r3d18_folder_small.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos.
# Expected: depends on the videos; docs/results.md contains measured examples.

_base_ = "sce_r3d18_folder.py"

model = dict(
    backbone=dict(base_channels=8, channels_last=True),
    projector=dict(hidden_channels=256, out_channels=64),
    predictor=dict(hidden_channels=256),
    queue_size=256,
)
# Colours and crops have half the strength, because small images contain less detail.
data_preprocessor = dict(
    channels_last=True,
    views=[
        dict(name="strong-alpha", strength=0.5, blur_prob=0.0),
        dict(name="strong-beta", strength=0.5, blur_prob=0.0),
    ],
)
train_dataloader = dict(
    batch_size=16,
    num_workers=1,
    sampler=dict(min_samples=320),
    dataset=dict(
        pipeline=dict(
            RandomClips=dict(clip_duration=1.28, num_frames=4),
            RandomResizedCropClips=dict(size=64, area=(0.4, 1.0)),
        )
    ),
)

evaluation_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=1.28, num_frames=4, num_clips=4),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=64),
    dict(type="CenterCropClips", size=64),
    dict(type="PackClips"),
]
test_dataloader = dict(batch_size=16, num_workers=1, dataset=dict(pipeline=evaluation_pipeline))
test_cfg = dict(
    gallery_dataloader=dict(
        batch_size=16, num_workers=1, dataset=dict(pipeline=evaluation_pipeline)
    )
)
