# A linear classifier on the frozen features of any network, for your own labelled videos. One pass
# computes the features of central crops without augmentation, and then logistic regression fits
# the classifier. For an image network, model.backbone.frame_pool adds motion.
# Paper:    none. Use it if there are few labelled videos, or if the network is too large to train.
# Data:     two folders for training and test with one sub-folder per class, or lists of
#           "path label" (...dataset.ann_file=LIST; names of the labels ...dataset.class_file=FILE).
# Run:      sce-video finetune RUN --train TRAIN --test TEST --out OUT --route frozen, which chooses
#           the settings by cross-validation;
#           python tools/train.py configs/downstream/linear/frozen_folder.py \
#               --pretrained work_dirs/sce_r3d18_folder/epoch_100.pth --cfg-options \
#               train_dataloader.dataset.data_root=/path/to/train \
#               test_dataloader.dataset.data_root=/path/to/test
# Test:     python tools/test.py configs/downstream/linear/frozen_folder.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/test
# Hardware: a few CPU cores, or 1 GPU.
# Expected: depends on the videos; docs/results.md contains measured examples.

_base_ = ["../finetune/r3d18_folder.py"]

model = dict(backbone=dict(frozen_stages=4), cls_head=dict(dropout_ratio=0.0))
data_preprocessor = dict(views=[])
# Training uses the same clips as the test, and one central crop of each.
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.56, num_frames=8, num_clips=2),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=256),
    dict(type="PackClips"),
]
train_dataloader = dict(sampler=dict(shuffle=False), dataset=dict(pipeline=train_pipeline))
test_dataloader = dict(
    dataset=dict(pipeline=dict(UniformClips=dict(num_clips=2), PackVideo=dict(num_crops=1)))
)
# The pass needs no validation, because there is nothing to choose.
val_dataloader = None
val_evaluator = None
val_cfg = None
train_cfg = dict(_delete_=True, type="LinearFitLoop", l2=0.1, max_epochs=1)
custom_hooks = []
default_hooks = dict(checkpoint=dict(interval=1))

# Each name sets several places together, for example sce-video finetune ... --route frozen
# --frames 16.
settings = dict(
    _delete_=True,
    l2=["train_cfg.l2"],
    clip_duration=[
        "train_dataloader.dataset.pipeline.UniformClips.clip_duration",
        "test_dataloader.dataset.pipeline.UniformClips.clip_duration",
    ],
    frames=[
        "train_dataloader.dataset.pipeline.UniformClips.num_frames",
        "test_dataloader.dataset.pipeline.UniformClips.num_frames",
    ],
    clips=[
        "train_dataloader.dataset.pipeline.UniformClips.num_clips",
        "test_dataloader.dataset.pipeline.UniformClips.num_clips",
    ],
    size=[
        "train_dataloader.dataset.pipeline.ResizeShortSide.size",
        "train_dataloader.dataset.pipeline.CenterCropClips.size",
        "test_dataloader.dataset.pipeline.ResizeShortSide.size",
        "test_dataloader.dataset.pipeline.PackVideo.crop_size",
    ],
    crops=["test_dataloader.dataset.pipeline.PackVideo.num_crops"],
    batch=["train_dataloader.batch_size"],
    workers=["train_dataloader.num_workers", "test_dataloader.num_workers"],
    seed=["randomness.seed"],
)
