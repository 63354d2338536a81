# One setting of SCE at a time on the test split of the toy actions, three seeds.
# Paper:    none. It asks the questions of tab:video-lambda-vary, tab:video-temp and tab:video-time
#           at the size of toy actions, and also varies the predictor.
# Run:      sce-video prepare toy_actions data/toy_actions --train 480 --val 240 --test 240
#           sce-video sweep configs/sweeps/toy_controlled.py \
#               --out work_dirs/comparison --jobs 2
# Hardware: 2 CPU cores, an hour.
# Expected: see docs/results.md.

_lambda = {f"lambda {_value}": {"model.lambda_": _value} for _value in (0.0, 1.0)}
_tau_m = {"tau_m 0.09": {"model.tau_m": 0.09}}
_diff = {
    f"RGB difference {_value}": {"train_dataloader.dataset.pipeline.RandomClips.diff_prob": _value}
    for _value in (0.2, 0.5)
}

title = "One setting of SCE at a time on toy actions, test part"
pretrain = dict(
    config="configs/quickstart/sce_toy_actions.py",
    options={
        "default_hooks.online_evaluation": None,
        "train_cfg.max_epochs": 40,
        "train_dataloader.batch_size": 16,
        "custom_hooks.ScheduleHook.lr.warmup_epochs": 5,
        "optim_wrapper.optimizer.lr": 1e-3,
    },
)
points = [
    dict(name="random weights", checkpoint="random"),
    dict(name="lambda 0.5, tau_m 0.05, no difference, predictor"),
    *(
        dict(name=_name, options=_options)
        for _name, _options in {**_lambda, **_tau_m, **_diff}.items()
    ),
    dict(name="no predictor", options={"model.predictor": None}),
]
columns = [
    dict(name="kNN", metric="knn_top1"),
    dict(name="linear probe", metric="linear_top1"),
    dict(name="R@1", metric="retrieval_r1"),
]
seeds = [0, 1, 2]
notes = ["240 videos: the standard error of a run is about 3 points."]
