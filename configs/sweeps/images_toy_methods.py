# SCE, MoCo v2 and ReSSL on frames of the test split of the toy actions, three seeds, at equal
# compute. A frame shows the pattern of the disc but not its motion, so the classes are the 3
# patterns.
# Paper:    none.
# Run:      sce-video prepare toy_actions data/toy_actions --train 480 --val 240 \
#               --test 240 --patterns
#           OMP_NUM_THREADS=1 sce-video sweep configs/sweeps/images_toy_methods.py \
#               --out work_dirs/images
# Hardware: 1 CPU core, a quarter of an hour.
# Expected: see docs/results.md.
#
# The settings are the best of three trials by the linear probe on the validation split
# (images_toy_tuning.py, seed 0). They were chosen with seed 0.

_base_ = "_base_/image_methods.py"

_titles, _trials, _metrics = _base_._titles, _base_._trials, _base_._metrics
_chosen = _base_._chosen["toy"]
_evaluation = {"test_dataloader.dataset.ann_file": "test_patterns.txt", **_base_._toy_evaluation}

title = "Images: frames of toy actions, test part"
pretrain = dict(options=_base_._toy_frames)
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
notes = ["240 videos: the standard error of a run is about 3 points."]
