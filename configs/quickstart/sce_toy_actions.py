# SCE, ResNet3D-18 with 8 channels in the stem, 4 frames at 32x32, on generated toy actions.
# Paper: none. Network, objective and views are small, so that two CPU cores need only minutes to
#        exceed random initialisation. A class combines what moves with how it moves
#        (sce_video/data_tools/generated.py); labels are used for evaluation only.
# Run:      bash tools/quickstart.sh            (set-up, videos, pretraining, evaluation, table)
#        or sce-video prepare toy_actions data/toy_actions
#           python tools/train.py configs/quickstart/sce_toy_actions.py
# Test:     python tools/test.py configs/quickstart/sce_toy_actions.py CHECKPOINT    (or: random)
# Hardware: 2 CPU cores, 2 GB.
# Expected: linear probe (12 classes) 18 to 34 % at random, 55 to 63 % pretrained; docs/results.md
#           contains all measurements.

_base_ = ["../_base_/default_runtime.py", "../_base_/models/sce_r3d18.py"]

# Random initialisation is evaluated too. With zero_init_residual, it would be little more than a
# stem.
model = dict(
    backbone=dict(base_channels=8, zero_init_residual=False, channels_last=True),
    projector=dict(hidden_channels=256, out_channels=64),
    predictor=dict(hidden_channels=256),
    queue_size=192,
)
fit_queue = True  # for fewer videos, as in tools/quickstart.py --smoke
# There is no blur, because it would remove the patterns of the classes at 32x32.
data_preprocessor = dict(
    type="VideoDataPreprocessor",
    views=[
        dict(name="strong-alpha", strength=0.5, blur_prob=0.0),
        dict(name="strong-beta", strength=0.5, blur_prob=0.0),
    ],
    channels_last=True,
)

train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    persistent_workers=True,
    drop_last=True,
    sampler=dict(type="ResumableSampler", shuffle=True),
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(
        type="VideoDataset",
        data_root="data/toy_actions/train",
        pipeline=[
            dict(type="OpenVideo"),
            dict(type="RandomClips", clip_duration=1.15, num_frames=4, num_views=2),
            dict(type="DecodeClips"),
            dict(type="RandomResizedCropClips", size=32, area=(0.4, 1.0)),
            dict(type="PackClips"),
        ],
    ),
)
train_cfg = dict(type="ResumableTrainLoop", max_epochs=100)
optim_wrapper = dict(
    type="OptimWrapper",
    accumulative_counts=1,
    optimizer=dict(type="AdamW", lr=2e-3, weight_decay=1e-4),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=None,  # AdamW's learning rate does not grow with the batch
        lr=dict(name="warmup_cosine", warmup_epochs=10),
        model=dict(momentum=dict(name="cosine", start=0.97, end=1.0)),  # fast target
    ),
    dict(type="OptimizerStepHook"),
]

evaluation_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=1.15, num_frames=4, num_clips=4),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=32),
    dict(type="CenterCropClips", size=32),
    dict(type="PackClips"),
]
default_hooks = dict(
    checkpoint=dict(interval=25, max_keep_ckpts=1),
    online_evaluation=dict(  # kNN among the training videos; labels are not used in training
        type="OnlineEvaluationHook",
        interval=20,
        gallery=dict(
            batch_size=16,
            num_workers=1,
            dataset=dict(
                type="VideoDataset",
                data_root="data/toy_actions/train",
                pipeline=evaluation_pipeline,
                on_error="raise",
            ),
        ),
    ),
)

# The test split was not used for tuning. Settings were chosen on data_root="data/toy_actions/val".
test_dataloader = dict(
    batch_size=16,
    num_workers=1,
    dataset=dict(
        type="VideoDataset",
        data_root="data/toy_actions/test",
        pipeline=evaluation_pipeline,
        on_error="raise",
    ),
)
test_evaluator = [
    dict(type="KNN", k=20),
    dict(type="LinearProbe"),
    dict(type="Retrieval", ks=(1, 5, 10)),
    dict(type="FeatureStatistics"),
]
test_cfg = dict(
    type="MultiViewTestLoop",
    gallery_dataloader=dict(
        batch_size=16,
        num_workers=1,
        dataset=dict(
            type="VideoDataset",
            data_root="data/toy_actions/train",
            pipeline=evaluation_pipeline,
            on_error="raise",
        ),
    ),
)
