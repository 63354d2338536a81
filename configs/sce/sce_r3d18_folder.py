# SCE, ResNet3D-18, 8 frames, on a folder of your own videos, without labels.
# Paper: none. It uses the networks, views and objective of tab:video-best with an optimiser for
#        short runs, because LARS with the linear rule needs tens of thousands of steps.
# Run:      python tools/train.py configs/sce/sce_r3d18_folder.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_r3d18_folder.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 1 GPU of 24 GB with --amp. With a smaller GPU or none, lower
#           train_dataloader.batch_size, model.backbone.base_channels and the sizes in the
#           pipeline.
# Expected: depends on the videos; docs/results.md contains measured examples.

_base_ = [
    "../_base_/default_runtime.py",
    "../_base_/models/sce_r3d18.py",
    "../_base_/pipelines/pretrain_8x224.py",
    "../_base_/views/alpha_beta_s1.0.py",
    "../_base_/schedules/adamw_100e.py",
]

# The queue has fewer keys than there are videos, because otherwise every video is its own negative.
# With 1024 videos or fewer, training shortens the queue (sce_video/runs/launch.py).
# zero_init_residual makes blocks start as the identity, which is too slow for short runs.
model = dict(backbone=dict(zero_init_residual=False, with_cp=False), queue_size=1024)
fit_queue = True
# Short runs need a fast-moving target network.
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.97, end=1.0)))
)

train_dataloader = dict(
    batch_size=32,
    num_workers=4,
    persistent_workers=True,
    drop_last=True,
    # An epoch has at least 20 steps, so few videos are shown several times with other views.
    sampler=dict(type="ResumableSampler", shuffle=True, min_samples=640),
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(type="VideoDataset", data_root="data/videos", pipeline=_base_.train_pipeline),
)
# Your own folder may contain more broken files than a curated dataset.
default_hooks = dict(checkpoint=dict(interval=10), bad_files=dict(max_bad_share=0.1))

evaluation_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.56, num_frames=8, num_clips=4),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=256),
    dict(type="PackClips"),
]
test_dataloader = dict(
    batch_size=4,
    num_workers=4,
    dataset=dict(
        type="VideoDataset",
        data_root="data/videos_test",
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
        batch_size=4,
        num_workers=4,
        dataset=dict(
            type="VideoDataset",
            data_root="data/videos_train",
            pipeline=evaluation_pipeline,
            on_error="skip",
        ),
    ),
)

# Each name sets several places together, for example sce-video pretrain VIDEOS --frames 16. A
# method that lacks a place (SimCLR has no queue) leaves it out.
settings = dict(
    width=["model.backbone.base_channels"],
    hidden=["model.projector.hidden_channels", "model.predictor.hidden_channels"],
    embedding=["model.projector.out_channels"],
    clip_duration=[
        "train_dataloader.dataset.pipeline.RandomClips.clip_duration",
        "test_dataloader.dataset.pipeline.UniformClips.clip_duration",
        "test_cfg.gallery_dataloader.dataset.pipeline.UniformClips.clip_duration",
    ],
    frames=[
        "train_dataloader.dataset.pipeline.RandomClips.num_frames",
        "test_dataloader.dataset.pipeline.UniformClips.num_frames",
        "test_cfg.gallery_dataloader.dataset.pipeline.UniformClips.num_frames",
    ],
    size=[
        "train_dataloader.dataset.pipeline.RandomResizedCropClips.size",
        "test_dataloader.dataset.pipeline.ResizeShortSide.size",
        "test_dataloader.dataset.pipeline.CenterCropClips.size",
        "test_cfg.gallery_dataloader.dataset.pipeline.ResizeShortSide.size",
        "test_cfg.gallery_dataloader.dataset.pipeline.CenterCropClips.size",
    ],
    batch=["train_dataloader.batch_size"],
    epoch_samples=["train_dataloader.sampler.min_samples"],
    epochs=["train_cfg.max_epochs"],
    warmup=["custom_hooks.ScheduleHook.lr.warmup_epochs"],
    queue=["model.queue_size"],
    momentum=["custom_hooks.ScheduleHook.model.momentum.start"],
    lr=["optim_wrapper.optimizer.lr"],
    memory=["model.backbone.with_cp"],
    workers=[
        "train_dataloader.num_workers",
        "test_dataloader.num_workers",
        "test_cfg.gallery_dataloader.num_workers",
    ],
    seed=["randomness.seed"],
)
