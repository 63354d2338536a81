# SCE, ResNet-18 (2-D) with the small stem and 16 channels in it, on scikit-learn's digits: 1,797
# real 8x8 images, shown at 16x16; a CPU shows within a minute what it learns.
# Paper: none. It is a small version of the paper's baselines on small images (tab:baselines: strong
#        online view, weak target view, not symmetrised, no predictor), with an optimiser for short
#        runs.
# Run:      sce-video prepare digits data/digits
#           python tools/train.py configs/sce/sce_r18_digits_small.py
# Test:     python tools/test.py configs/sce/sce_r18_digits_small.py CHECKPOINT       (or: random)
# Hardware: 1 CPU core, 1 GB.
# Expected: docs/results.md, "Images: methods at equal compute".

_base_ = "sce_r3d18_folder.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="ResNet2d",
        depth=18,
        stem="small",
        base_channels=16,
        channels_last=True,
    ),
    projector=dict(
        hidden_channels=256, out_channels=64, num_layers=2, norm_output=False, bias_output=True
    ),
    predictor=None,
    queue_size=512,
    symmetric=False,
)
# Digits are grey and must not be flipped. There is no blur, because it removes the strokes at this
# size.
_strong = dict(name="strong", flip_prob=0.0, saturation=0.0, hue=0.0, grey_prob=0.0, blur_prob=0.0)
_weak = dict(name="weak", flip_prob=0.0)
data_preprocessor = dict(mean=0.305, std=0.376, channels_last=True, views=[_strong, _weak])

train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    sampler=dict(min_samples=0),
    dataset=dict(
        type="ImageDataset",
        data_root="data/digits/train",
        pipeline=[
            dict(type="LoadImage", num_views=2),
            dict(type="RandomResizedCropClips", size=16, area=(0.4, 1.0)),
            dict(type="PackClips"),
        ],
    ),
)
train_cfg = dict(max_epochs=20)
custom_hooks = dict(ScheduleHook=dict(lr=dict(warmup_epochs=2)))

evaluation_pipeline = [
    dict(type="LoadImage", num_views=1),
    dict(type="ResizeShortSide", size=16),
    dict(type="PackClips"),
]
# Settings are chosen on data/digits/val.
test_dataloader = dict(
    batch_size=64,
    num_workers=1,
    dataset=dict(type="ImageDataset", data_root="data/digits/test", pipeline=evaluation_pipeline),
)
test_cfg = dict(
    gallery_dataloader=dict(
        batch_size=64,
        num_workers=1,
        dataset=dict(
            type="ImageDataset", data_root="data/digits/train", pipeline=evaluation_pipeline
        ),
    )
)
