# AVA: 32 epochs of SGD with Nesterov momentum, learning rate 0.3 at batch 64, x 0.1 at 16, 24 and
# 28, warm-up 5.3 epochs from 5e-4, weight decay 1e-7 but not of BN, float32
# (facebookresearch/SlowFast, config/defaults.py and configs/contrastive_ssl).
train_cfg = dict(type="ResumableTrainLoop", max_epochs=32)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    constructor="NoNormDecayConstructor",
    dtype="float32",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=0.3, momentum=0.9, nesterov=True, weight_decay=1e-7),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=64,
        lr=dict(
            name="multistep", milestone_epochs=(16, 24, 28), warmup_epochs=5.3, warmup_start=5e-4
        ),
    ),
]
sync_bn = "functional"
