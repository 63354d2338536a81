# Supervised from random weights. The paper names no optimiser: 200 epochs as in pretraining, the
# rest as SlowFast's on Kinetics (lr 0.1 at batch 64, weight decay 1e-4, warm-up 34, cosine).
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200, val_interval=10)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float16",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=0.1, momentum=0.9, weight_decay=0.0001),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=64,
        lr=dict(name="warmup_cosine", warmup_epochs=34),
    ),
]
sync_bn = "torch"
