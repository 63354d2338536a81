# Three trials of SCE, MoCo v2 and ReSSL on frames of the validation split of the toy actions, at
# equal compute. A frame shows the pattern of the disc but not its motion, so the classes are the 3
# patterns.
# Paper:    none. These are the trials behind images_toy_methods.py and images_weizmann4_methods.py.
# Run:      sce-video prepare toy_actions data/toy_actions --train 480 --val 240 \
#               --test 240 --patterns
#           OMP_NUM_THREADS=1 sce-video sweep configs/sweeps/images_toy_tuning.py \
#               --out work_dirs/images
# Hardware: 1 CPU core, a quarter of an hour.
# Expected: see docs/results.md.

_base_ = "_base_/image_methods.py"

_titles, _trials, _metrics = _base_._titles, _base_._trials, _base_._metrics
_evaluation = {"test_dataloader.dataset.ann_file": "val_patterns.txt", **_base_._toy_evaluation}

title = "Trials on frames of toy actions, validation part"
pretrain = dict(options=_base_._toy_frames)
points = [
    dict(
        name=f"{_title}, {_trial}",
        config=f"configs/{_method}/{_method}_r18_frames_small.py",
        options=_change,
    )
    for _method, _title in _titles.items()
    for _trial, _change in _trials.items()
]
columns = [
    dict(name=_name, metric=_metric, options=_evaluation) for _name, _metric in _metrics.items()
]
notes = ["One seed; 240 videos: the standard error of a cell is about 3 points."]
