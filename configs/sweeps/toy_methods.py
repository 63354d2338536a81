# All methods on the test split of the toy actions, three seeds, at equal compute.
# Paper:    none.
# Run:      sce-video prepare toy_actions data/toy_actions --train 480 --val 240 --test 240
#           sce-video sweep configs/sweeps/toy_methods.py \
#               --out work_dirs/comparison --jobs 2
# Hardware: 2 CPU cores, an hour.
# Expected: see docs/results.md.
#
# The numbers of epochs give equal compute, and the settings are the best of four trials by the
# linear probe on the validation split (toy_tuning.py, seed 0). They were chosen with seed 0.

_base_ = "_base_/methods.py"

_titles, _chosen = _base_._titles, _base_._chosen
_epochs = dict(sce=40, byol=40, moco_v3=40, simclr=53, swav=53, lejepa=53, moco=80, ressl=80)

title = "Methods on toy actions, test part"
pretrain = dict(
    options={
        "default_hooks.online_evaluation": None,
        "train_dataloader.batch_size": 16,
        "custom_hooks.ScheduleHook.lr.warmup_epochs": 5,
    }
)
points = [
    dict(
        name="random weights", config="configs/quickstart/sce_toy_actions.py", checkpoint="random"
    ),
    *(
        dict(
            name=_titles[_method],
            config=f"configs/quickstart/{_method}_toy_actions.py",
            options={"train_cfg.max_epochs": _count, **_chosen[_method]},
        )
        for _method, _count in _epochs.items()
    ),
]
columns = [
    dict(name="kNN", metric="knn_top1"),
    dict(name="linear probe", metric="linear_top1"),
    dict(name="R@1", metric="retrieval_r1"),
]
seeds = [0, 1, 2]
notes = ["240 videos: the standard error of a run is about 3 points."]
