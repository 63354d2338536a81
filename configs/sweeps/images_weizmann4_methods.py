# SCE, MoCo v2 and ReSSL on frames of 36 real clips (weizmann4 in docs/results.md), leaving one
# person out, at equal compute.
# Paper:    none.
# Run:      OMP_NUM_THREADS=1 sce-video sweep configs/sweeps/images_weizmann4_methods.py \
#               --out work_dirs/images
#           with the clips in data/weizmann4/<action>/person<N>_*
# Hardware: 1 CPU core, a quarter of an hour.
# Expected: see docs/results.md.
#
# Learning rate and momentum were chosen on frames of the validation split of the toy actions
# (images_toy_tuning.py). Nothing was chosen on these clips.

_base_ = "_base_/image_methods.py"

_titles, _trials, _metrics = _base_._titles, _base_._trials, _base_._metrics
_chosen = _base_._chosen["toy"]
_evaluation = {
    "test_dataloader.dataset.data_root": "data/weizmann4",
    "test_cfg.gallery_dataloader": None,
    "test_cfg.group_pattern": r"person(\d+)",
}

title = "Images: frames of weizmann4, leaving one person out"
pretrain = dict(
    options={
        "train_dataloader.dataset.data_root": "data/weizmann4",
        "train_cfg.max_epochs": 30,
    }
)
points = [
    dict(name="random weights", config="configs/sce/sce_r18_frames_small.py", checkpoint="random"),
    *(
        dict(
            name=f"{_title}, {_chosen[_method]}",
            config=f"configs/{_method}/{_method}_r18_frames_small.py",
            options=_trials[_chosen[_method]],
        )
        for _method, _title in _titles.items()
    ),
]
columns = [
    dict(name=_name, metric=_metric, options=_evaluation) for _name, _metric in _metrics.items()
]
seeds = [0, 1, 2]
notes = ["36 clips: the standard error of a run is about 8 points."]
