# 200 epochs of LARS, 2.4 x batch/256, 35 epochs of warm-up, cosine to 0 (paper, appendix D.3;
# authors' code, juliendenize/eztorch). Recipes set the schedules of a method's parameters.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float16",
    accumulative_counts=1,
    optimizer=dict(type="LARS", lr=2.4, momentum=0.9, weight_decay=1e-6, trust_coefficient=0.001),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=256,
        lr=dict(name="warmup_cosine", warmup_epochs=35),
    ),
    dict(type="OptimizerStepHook"),
]
sync_bn = "functional"
