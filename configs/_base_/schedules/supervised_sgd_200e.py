# Supervised from random weights, 200 epochs of SGD: learning rate 0.4 x batch/256 (batch 1024),
# weight decay 1e-4, warm-up 34 epochs, cosine to 0.01 x batch/256, BN per GPU, float32 (the
# authors' code, juliendenize/eztorch, configs/run/supervised).
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200, val_interval=10)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float32",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=0.4, momentum=0.9, weight_decay=1e-4),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=256,
        lr=dict(name="warmup_cosine", warmup_epochs=34, end=0.01),
    ),
]
