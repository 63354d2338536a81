# 100 epochs of AdamW with warm-up and cosine, for datasets far smaller than Kinetics. With this
# learning rate, the loss of SCE falls below chance level log(K+1) within hundreds of steps
# (docs/results.md).
train_cfg = dict(type="ResumableTrainLoop", max_epochs=100)
optim_wrapper = dict(
    type="OptimWrapper",
    accumulative_counts=1,
    optimizer=dict(type="AdamW", lr=2e-3, weight_decay=1e-4),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=None,  # AdamW's learning rate does not grow with the batch
        lr=dict(name="warmup_cosine", warmup_epochs=5),
    ),
    dict(type="OptimizerStepHook"),
]
sync_bn = "functional"
