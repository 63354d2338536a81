# Something-Something v2: 22 epochs of SGD with Nesterov momentum, learning rate 0.12 at batch 64, x
# 0.1 at 14 and 18, warm-up 0.19 epoch from 1e-4, weight decay 1e-6 but not of BN, float32
# (facebookresearch/SlowFast, config/defaults.py and configs/contrastive_ssl).
train_cfg = dict(type="ResumableTrainLoop", max_epochs=22, val_interval=2)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    constructor="NoNormDecayConstructor",
    dtype="float32",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=0.12, momentum=0.9, nesterov=True, weight_decay=1e-6),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=64,
        lr=dict(name="multistep", milestone_epochs=(14, 18), warmup_epochs=0.19, warmup_start=1e-4),
    ),
]
sync_bn = "functional"
