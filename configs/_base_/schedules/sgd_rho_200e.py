# 200 epochs of SGD with Nesterov momentum, 0.1 per 64 videos for rho 4 (0.05 for rho 2), weight
# decay 1e-4 but not of BN, 35 epochs of linear warm-up, cosine to 0, BN per GPU
# (facebookresearch/SlowFast, configs/contrastive_ssl/MoCo_SlowR50_8x8.yaml, config/defaults.py).
# The warm-up begins at 0.001 per 64 videos. Their code uses float16, whose loss scaler does not
# work with gradients per query.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    constructor="NoNormDecayConstructor",
    dtype="bfloat16",
    accumulative_counts=1,
    optimizer=dict(type="SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=64,
        lr=dict(name="warmup_cosine", warmup_epochs=35, warmup_start=0.001),
    ),
    dict(type="OptimizerStepHook"),
]
