# SCE, ResNet-18 (2-D) with 16 channels in the stem, on single frames at 64x64 from your own videos.
# A video is a set of images, and both views come from one frame.
# Paper: none. It is a small version of the paper's baselines on images (tab:baselines: strong
#        online view, weak target view, not symmetrised, no predictor), with an optimiser for short
#        runs. It is evaluated as a video network, which averages the features of 4 frames.
# Run:      python tools/train.py configs/sce/sce_r18_frames_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_r18_frames_small.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 1 CPU core, 2 GB.
# Expected: docs/results.md, "Images: methods at equal compute" (weizmann4, toy actions).

_base_ = "sce_r3d18_folder.py"

model = dict(
    backbone=dict(_delete_=True, type="ResNet2d", depth=18, base_channels=16, channels_last=True),
    projector=dict(
        hidden_channels=256, out_channels=64, num_layers=2, norm_output=False, bias_output=True
    ),
    predictor=None,
    queue_size=256,
    symmetric=False,
)
# There is no blur, because small frames contain little detail.
_strong = dict(name="strong", blur_prob=0.0)
data_preprocessor = dict(channels_last=True, views=[_strong, dict(name="weak")])

train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    sampler=dict(min_samples=320),
    dataset=dict(
        pipeline=[
            dict(type="OpenVideo"),
            dict(type="RandomFrame", num_views=2),
            dict(type="DecodeClips"),
            dict(type="RandomResizedCropClips", size=64, area=(0.4, 1.0)),
            dict(type="PackClips"),
        ],
    ),
)
train_cfg = dict(max_epochs=60)

evaluation_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=0.04, num_frames=1, num_clips=4),
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
