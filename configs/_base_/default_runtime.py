# Runner, hooks and logging of every run. Hooks are named entries, so that a recipe or
# --cfg-options can change one of them.
default_scope = "sce_video"
runner_type = "VideoRunner"
randomness = dict(seed=0)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),  # without a GPU, gloo is used
)
default_hooks = dict(
    logger=dict(type="LoggerHook", interval=20, ignore_last=False, log_metric_by_epoch=False),
    checkpoint=dict(type="CheckpointHook", interval=1, max_keep_ckpts=3, save_last=True),
    log_reduction=dict(type="LogReductionHook"),
    progress=dict(type="ProgressHook"),
    alarms=dict(type="AlarmHook"),
    chance_level=dict(type="ChanceLevelHook"),
    screen=dict(type="ScreenProgressHook"),
    bad_files=dict(type="BadFileHook", max_bad_share=0.05),
)
# Measured values are logged as means over the last window_size iterations. Scheduled values
# (learning rate, target momentum) are logged as they are.
log_processor = dict(type="MeanLogProcessor", window_size=20, by_epoch=True)
visualizer = dict(
    type="Visualizer",
    vis_backends=[dict(type="TensorboardVisBackend")],  # LoggerHook writes metrics.jsonl
)
# The page run.html is written after a training run with up to this many training videos.
# None turns it off.
run_page = dict(videos=64)
# compile = True, or torch.compile's arguments as a dict, compiles the encoders. conv_2d = True
# computes spatial convolutions in 2-D with the same weights.
load_from = None
resume = False
