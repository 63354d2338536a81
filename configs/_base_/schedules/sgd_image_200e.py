# 200 epochs of SGD with momentum 0.9 on ImageNet100: 0.3 x batch/256, 5 epochs of linear warm-up,
# cosine to 0 at every step, weight decay 1e-4 of all parameters, BN and biases included, BN per GPU
# (paper, appendix D.1; juliendenize/SCE, configs/run/pretrain/sce). Recipes set the schedules of a
# method's parameters.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float16",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=0.3, momentum=0.9, weight_decay=1e-4),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=256,
        lr=dict(name="warmup_cosine", warmup_epochs=5),
    ),
    dict(type="OptimizerStepHook"),
]
