# Linear evaluation: 60 epochs of SGD, learning rate 2 x batch/256, no weight decay, cosine to 0
# (paper, appendix D.3), float32 as in the authors' code (juliendenize/eztorch). The warm-up takes 8
# epochs as in the authors' code and SlowFast. The paper states 35, which is a variant:
# --cfg-options custom_hooks.ScheduleHook.lr.warmup_epochs=35
train_cfg = dict(type="ResumableTrainLoop", max_epochs=60, val_interval=5)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float32",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=2.0, momentum=0.9, weight_decay=0.0),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=256,
        lr=dict(name="warmup_cosine", warmup_epochs=8),
    ),
]
