# Finetuning on your own labelled videos: ResNet3D-18, 8 frames at 224x224, all weights.
# Paper:    none. The recipe suits a few dozen to a few thousand videos.
# Data:     two folders for training and test with one sub-folder per class, or lists of "path
#           label" (...dataset.ann_file=LIST; names of the labels ...dataset.class_file=FILE). The
#           classes are counted in the training data, and the checkpoint stores their names.
# Run:      sce-video finetune RUN --train TRAIN --test TEST --out OUT, which chooses the settings;
#           python tools/train.py configs/downstream/finetune/r3d18_folder.py \
#               --pretrained work_dirs/sce_r3d18_folder/epoch_100.pth --cfg-options \
#               train_dataloader.dataset.data_root=/path/to/train \
#               val_dataloader.dataset.data_root=/path/to/test
# Test:     python tools/test.py configs/downstream/finetune/r3d18_folder.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/test
# Hardware: 1 GPU of 8 GB with --amp; smaller or no GPU: a smaller network (model.backbone
#           .base_channels) and smaller sizes in the pipelines, as in the pretraining.
# Expected: depends on the videos; docs/results.md contains measured examples.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/recognition.py",
    "../../_base_/models/recognizer_r3d18.py",
    "../../_base_/pipelines/test_8x224.py",
]

# None stands for the channels of the backbone and the classes of the training data.
model = dict(
    backbone=dict(base_channels=64, frozen_stages=-1, zero_init_residual=False),
    cls_head=dict(in_channels=None, num_classes=None, dropout_ratio=0.5),
)
# If left and right are classes, set data_preprocessor.views.0.flip_prob=0.
data_preprocessor = dict(
    type="RecognizerDataPreprocessor",
    views=[dict(name="strong", strength=0.5, blur_prob=0.0, flip_prob=0.5)],
)
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=2.56, num_frames=8, num_views=1),
    dict(type="DecodeClips"),
    dict(type="RandomResizedCropClips", size=224, area=(0.35, 1.0)),
    dict(type="PackClips"),
]
# With few videos, the last and smaller batch of an epoch is used too.
train_dataloader = dict(
    batch_size=8,
    num_workers=4,
    drop_last=False,
    dataset=dict(data_root="data/videos_train", pipeline=train_pipeline),
)
val_dataloader = dict(
    num_workers=4, dataset=dict(data_root="data/videos_test", pipeline=_base_.val_pipeline)
)
test_dataloader = dict(
    num_workers=4, dataset=dict(data_root="data/videos_test", pipeline=_base_.test_pipeline)
)

# With 20 videos, this makes 600 steps. With thousands of videos, 50 epochs are enough.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200, val_interval=20)
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="NoNormDecayConstructor",
    accumulative_counts=1,
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=None,  # AdamW's learning rate does not grow with the batch
        lr=dict(name="warmup_cosine", warmup_epochs=5),
    ),
]
sync_bn = "functional"
# Your own folder may contain more broken files than a curated dataset.
default_hooks = dict(checkpoint=dict(interval=20), bad_files=dict(max_bad_share=0.1))

# Each name sets several places together, for example sce-video finetune ... --frames 16.
settings = dict(
    frozen=["model.backbone.frozen_stages"],
    width=["model.backbone.base_channels"],
    dropout=["model.cls_head.dropout_ratio"],
    clip_duration=[
        "train_dataloader.dataset.pipeline.RandomClips.clip_duration",
        "val_dataloader.dataset.pipeline.UniformClips.clip_duration",
        "test_dataloader.dataset.pipeline.UniformClips.clip_duration",
    ],
    frames=[
        "train_dataloader.dataset.pipeline.RandomClips.num_frames",
        "val_dataloader.dataset.pipeline.UniformClips.num_frames",
        "test_dataloader.dataset.pipeline.UniformClips.num_frames",
    ],
    size=[
        "train_dataloader.dataset.pipeline.RandomResizedCropClips.size",
        "val_dataloader.dataset.pipeline.ResizeShortSide.size",
        "val_dataloader.dataset.pipeline.CenterCropClips.size",
        "test_dataloader.dataset.pipeline.ResizeShortSide.size",
        "test_dataloader.dataset.pipeline.PackVideo.crop_size",
    ],
    flip=["data_preprocessor.views.0.flip_prob"],
    batch=["train_dataloader.batch_size"],
    epochs=["train_cfg.max_epochs"],
    warmup=["custom_hooks.ScheduleHook.lr.warmup_epochs"],
    lr=["optim_wrapper.optimizer.lr"],
    weight_decay=["optim_wrapper.optimizer.weight_decay"],
    clips=["test_dataloader.dataset.pipeline.UniformClips.num_clips"],
    crops=["test_dataloader.dataset.pipeline.PackVideo.num_crops"],
    workers=[
        "train_dataloader.num_workers",
        "val_dataloader.num_workers",
        "test_dataloader.num_workers",
    ],
    seed=["randomness.seed"],
)
