# Finetuning: 200 epochs of SGD, learning rate 0.1 x batch/256, no weight decay, cosine to 0 without
# warm-up (appendix D.3), float32 as in the authors' code (juliendenize/eztorch). --amp is faster,
# but the result then deviates from the recipe.
train_cfg = dict(type="ResumableTrainLoop", max_epochs=200, val_interval=20)
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
sync_bn = "functional"
