# Linear evaluation as MoCo v3 does: 90 epochs of SGD, learning rate 0.1 x batch/256, cosine to 0
# without warm-up, no weight decay, float32 (appendix D.2). Every 10th epoch is validated.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=90, val_interval=10)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float32",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=0.1, momentum=0.9, weight_decay=0.0),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=256,
        lr=dict(name="cosine", end=0.0),
    ),
]
