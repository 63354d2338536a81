# Attentive probes: 20 epochs of AdamW, each probe with a learning rate and weight decay of its own
# (model.cls_head), cosine to 0 without warm-up, a global batch of 256, to which the rates are not
# scaled (facebookresearch/vjepa2, configs/eval/vitl/k400.yaml; its fp16 is bf16 here, in which a
# diverged probe does not stop the others). No gradient is clipped there; to do so for each probe:
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
