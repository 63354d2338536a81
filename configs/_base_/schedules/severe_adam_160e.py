# SEVERE benchmark: Adam, learning rate 1e-4 at batch 32, times 0.3 at 3 milestones, no weight
# decay. Its 16 epochs show every video 10 times, which makes 160 epochs here, in float32
# (fmthoker/SEVERE-BENCHMARK, action_recognition/configs/benchmark).
train_cfg = dict(type="ResumableTrainLoop", max_epochs=160, val_interval=20)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="float32",
    accumulative_counts=1,
    optimizer=dict(type="Adam", lr=1e-4, weight_decay=0.0),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=32,
        lr=dict(name="multistep", milestone_epochs=(60, 100, 140), factor=0.3),
    ),
]
sync_bn = "functional"
