# 200 epochs of LARS around SGD with Nesterov momentum, 0.6 per 64 videos for rho 2 (1.2 for rho 4),
# 35 epochs of linear warm-up, cosine to 0, float32 (facebookresearch/SlowFast,
# configs/contrastive_ssl, slowfast/models/optimizer.py). The warm-up begins at 0.001 per 64 videos.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float32",
    accumulative_counts=1,
    optimizer=dict(
        type="LARS",
        lr=0.6,
        momentum=0.9,
        weight_decay=1e-6,
        trust_coefficient=0.001,
        nesterov=True,
        separate_norms=True,
    ),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=64,
        lr=dict(name="warmup_cosine", warmup_epochs=35, warmup_start=0.001),
    ),
    dict(type="OptimizerStepHook"),
]
sync_bn = "functional"
