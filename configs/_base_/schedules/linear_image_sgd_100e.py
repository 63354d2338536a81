# Linear evaluation as MoCo does: 100 epochs of SGD, learning rate 30 for every batch size, times
# 0.1 at epochs 60 and 80, no weight decay, float32 (appendix D.1). Every 10th epoch is validated.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=100, val_interval=10)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float32",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=30.0, momentum=0.9, weight_decay=0.0),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=None,
        lr=dict(name="multistep", milestone_epochs=(60, 80), factor=0.1),
    ),
]
