# All methods on 36 real clips (weizmann4 in docs/results.md), leaving one person out, at equal
# compute.
# Paper:    none.
# Run:      sce-video sweep configs/sweeps/weizmann4_methods.py \
#               --out work_dirs/comparison --jobs 2
#           with the clips in data/weizmann4/<action>/person<N>_*
# Hardware: 2 CPU cores, half an hour.
# Expected: see docs/results.md.
#
# Learning rates and settings of the methods were chosen on the validation split of the toy actions
# (toy_tuning.py). Nothing was chosen on these clips, except the queue in SCE's recipe
# (docs/results.md). The numbers of epochs give equal compute, see toy_tuning.py.

_base_ = "_base_/methods.py"

_titles, _chosen = _base_._titles, _base_._chosen
_epochs = dict(sce=30, byol=30, moco_v3=30, simclr=40, swav=40, lejepa=40, moco=60, ressl=60)

title = "Methods on weizmann4, leaving one person out"
pretrain = dict(options={"train_dataloader.dataset.data_root": "data/weizmann4"})
points = [
    dict(
        name="random weights", config="configs/sce/sce_r3d18_folder_small.py", checkpoint="random"
    ),
    *(
        dict(
            name=_titles[_method],
            config=f"configs/{_method}/{_method}_r3d18_folder_small.py",
            options={"train_cfg.max_epochs": _count, **_chosen.get(_method, {})},
        )
        for _method, _count in _epochs.items()
    ),
]
_test = {
    "test_dataloader.dataset.data_root": "data/weizmann4",
    "test_cfg.gallery_dataloader": None,
    "test_cfg.group_pattern": r"person(\d+)",
}
columns = [
    dict(name="kNN", metric="knn_top1", options=_test),
    dict(name="linear probe", metric="linear_top1", options=_test),
    dict(name="R@1", metric="retrieval_r1", options=_test),
]
seeds = [0, 1, 2]
notes = ["36 clips: the standard error of a run is about 8 points."]
