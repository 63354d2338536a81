# 200 epochs of LARS on ImageNet: 0.3 x batch/256, 10 epochs of linear warm-up, cosine to 0 at every
# step, weight decay 1e-6, no decay and scaling of one-dimensional tensors, SyncBN (paper, appendix
# D.2; juliendenize/eztorch, configs/run/pretrain/sce/resnet50/resnet50_imagenet.yaml). Recipes set
# the schedules of a method's parameters.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float16",
    accumulative_counts=1,
    optimizer=dict(type="LARS", lr=0.3, momentum=0.9, weight_decay=1e-6, trust_coefficient=0.001),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=256,
        lr=dict(name="warmup_cosine", warmup_epochs=10),
    ),
    dict(type="OptimizerStepHook"),
]
sync_bn = "functional"
