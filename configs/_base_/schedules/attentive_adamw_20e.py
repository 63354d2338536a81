# Attentive probes: 20 epochs of AdamW, each probe with its own learning rate and weight decay
# (model.cls_head), cosine to 0 without warm-up, a global batch of 256, and learning rates that are
# not scaled with it (facebookresearch/vjepa2, configs/eval/vitl/k400.yaml. Its fp16 is bf16 here,
# so that a diverged probe does not stop the others). Gradients are not clipped there. To clip them
# for each probe:
# --cfg-options "optim_wrapper.clip_grad={'max_norm':1.0,'per_group':True}"
train_cfg = dict(type="ResumableTrainLoop", max_epochs=20, val_interval=5)
optim_wrapper = dict(
    type="MixedPrecisionOptimWrapper",
    dtype="bfloat16",
    accumulative_counts=1,
    constructor="ProbeGridConstructor",
    optimizer=dict(type="AdamW"),
)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=None,
        lr=dict(name="warmup_cosine", warmup_epochs=0),
    ),
]
