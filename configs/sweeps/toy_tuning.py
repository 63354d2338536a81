# Four trials of every method on the validation split of the toy actions, at equal compute.
# Paper:    none. These are the trials behind the comparison of docs/results.md (toy_methods.py).
# Run:      sce-video prepare toy_actions data/toy_actions --train 480 --val 240 --test 240
#           sce-video sweep configs/sweeps/toy_tuning.py \
#               --out work_dirs/comparison --jobs 2
# Hardware: 2 CPU cores, an hour.
#
# Compute is counted in units. A pass of a clip forward and backward through the online branch takes
# 3 units, and a forward pass through the target 1 unit. SCE, BYOL and MoCo v3 need 8 units per
# video and epoch. SimCLR, SwAV and LeJEPA have no target and need 6. MoCo and ReSSL are not
# symmetrised and need 4. The numbers of epochs give 320 units per video. Batches of 16, half of the
# recipe's, give more steps at equal compute.
# The trials are the recipe, half its learning rate and one setting of the method itself. The fourth
# one was chosen after these three. It is a faster target if there is one, and otherwise another
# setting of the method.

_base_ = "_base_/methods.py"

_titles, _momentum, _rate = _base_._titles, _base_._momentum, _base_._rate
_epochs = dict(sce=40, byol=40, moco_v3=40, simclr=53, swav=53, lejepa=53, moco=80, ressl=80)
_third = dict(
    sce={"model.tau_m": 0.07},
    byol={_momentum: 0.99},
    moco_v3={"model.tau": 1.0},
    simclr={"model.tau": 0.2},
    swav={"model.queue_size": 0},
    lejepa={"model.lambda_": 0.02},
    moco={"model.tau": 0.1},
    ressl={"model.tau_m": 0.05},
)
_fourth = {method: {_momentum: 0.9} for method in _epochs} | dict(
    simclr={"model.tau": 0.05},
    swav={"model.tau": 0.1, "model.epsilon": 0.05},
    lejepa={"model.lambda_": 0.1},
)


def _name(change):
    short = {_rate: "lr", _momentum: "momentum from"}
    return ", ".join(
        f"{short.get(key, key.split('.')[-1])} {value}" for key, value in change.items()
    )


title = "Trials of the methods on toy actions, validation part"
pretrain = dict(
    options={
        "default_hooks.online_evaluation": None,
        "train_dataloader.batch_size": 16,
        "custom_hooks.ScheduleHook.lr.warmup_epochs": 5,
    }
)
points = [
    dict(
        name=f"{_titles[_method]}, {_name(_change) or 'recipe'}",
        config=f"configs/quickstart/{_method}_toy_actions.py",
        options={"train_cfg.max_epochs": _count, **_change},
    )
    for _method, _count in _epochs.items()
    for _change in ({}, {_rate: 1e-3}, _third[_method], _fourth[_method])
]
_val = {"test_dataloader.dataset.data_root": "data/toy_actions/val"}
columns = [
    dict(name="kNN", metric="knn_top1", options=_val),
    dict(name="linear probe", metric="linear_top1", options=_val),
    dict(name="R@1", metric="retrieval_r1", options=_val),
]
notes = ["One seed; 240 videos: the standard error of a cell is about 3 points."]
