# Distillation of an image network into EfficientNet-Lite0 with temporal layers, 8 frames at 88x88,
# on a folder of your own videos. The student starts from the weights of its teacher or of another
# EfficientNet-Lite, and learns the teacher's features of every frame, their mean, their motion and
# their change. These features are computed once. The representation of a clip also shows where and
# when its features change.
# Paper: none.
# Run:      sce-video pretrain VIDEOS --out RUN --teacher efficientnet-lite0
#           With --plan, this command writes RUN/config.py, for python tools/train.py RUN/config.py.
# Test:     python tools/test.py configs/distill/distill_efficientnet_lite0_folder.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; minutes for a thousand videos.
# Expected: depends on the videos; docs/results.md contains measured examples.

_base_ = "distill_r3d18_folder_small.py"

pretrained = None  # has to be given
model = dict(
    backbone=dict(
        _delete_=True,
        type="EfficientNetLite",
        variant="lite0",
        temporal=True,
        frame_pool="mean+absdiff+delta+energy",
        # The published statistics suit real videos better than the statistics of a small batch.
        # The first layers are not trained, because this would double the time and gain nothing.
        norm_eval=True,
        frozen_stages=1,
    ),
    # With batch norm alone, the student's features match the teacher's up to a scale. If the
    # teacher's features have another size, num_layers must be 1.
    projector=dict(
        _delete_=True,
        type="MLP",
        hidden_channels=1280,
        num_layers=0,
        norm_output=True,
        affine_output=True,
    ),
    teacher_channels=1280,
    objective="frames",
)
# The frames are not augmented, because the teacher's features were computed once, without it.
data_preprocessor = dict(mean=127 / 255, std=128 / 255, channels_last=True, views=[{}])
train_dataloader = dict(
    sampler=dict(min_samples=0),
    dataset=dict(
        pipeline=[
            dict(type="OpenVideo"),
            dict(type="OneOfClips", clip_duration=2.56, num_frames=8, num_clips=4),
            dict(type="DecodeClips"),
            dict(type="ResizeShortSide", size=88),
            dict(type="CenterCropClips", size=88),
            dict(type="PackClips"),
        ]
    ),
)
train_cfg = dict(max_epochs=5)
optim_wrapper = dict(
    optimizer=dict(lr=2e-4, weight_decay=0.0),
    clip_grad=dict(max_norm=5.0),
)
custom_hooks = dict(ScheduleHook=dict(lr=dict(warmup_epochs=0.35)))

evaluation_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.56, num_frames=8, num_clips=4),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=88),
    dict(type="CenterCropClips", size=88),
    dict(type="PackClips"),
]
test_dataloader = dict(batch_size=16, num_workers=1, dataset=dict(pipeline=evaluation_pipeline))
test_cfg = dict(
    gallery_dataloader=dict(
        batch_size=16, num_workers=1, dataset=dict(pipeline=evaluation_pipeline)
    )
)

settings = dict(
    width=[],  # the student has the widths of its published weights
    hidden=[],
    queue=[],
    momentum=[],
    size=[
        "train_dataloader.dataset.pipeline.ResizeShortSide.size",
        "train_dataloader.dataset.pipeline.CenterCropClips.size",
        "test_dataloader.dataset.pipeline.ResizeShortSide.size",
        "test_dataloader.dataset.pipeline.CenterCropClips.size",
        "test_cfg.gallery_dataloader.dataset.pipeline.ResizeShortSide.size",
        "test_cfg.gallery_dataloader.dataset.pipeline.CenterCropClips.size",
    ],
)
