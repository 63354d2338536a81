# SCE, MoCo v2 and ReSSL on the test split of the digits, three seeds, at equal compute.
# Paper:    none.
# Run:      sce-video prepare digits data/digits
#           OMP_NUM_THREADS=1 sce-video sweep configs/sweeps/images_digits_methods.py \
#               --out work_dirs/images
# Hardware: 1 CPU core, a quarter of an hour.
# Expected: see docs/results.md.
#
# The settings are the best of three trials by the linear probe on the validation split
# (images_digits_tuning.py, seed 0). They were chosen with seed 0.

_base_ = "_base_/image_methods.py"

_titles, _trials, _metrics = _base_._titles, _base_._trials, _base_._metrics
_chosen = _base_._chosen["digits"]

title = "Images: digits, test part"
points = [
    dict(name="random weights", config="configs/sce/sce_r18_digits_small.py", checkpoint="random"),
    *(
        dict(
            name=f"{_title}, {_chosen[_method]}",
            config=f"configs/{_method}/{_method}_r18_digits_small.py",
            options=_trials[_chosen[_method]],
        )
        for _method, _title in _titles.items()
    ),
]
columns = [dict(name=_name, metric=_metric) for _name, _metric in _metrics.items()]
seeds = [0, 1, 2]
notes = ["364 images: the standard error of a run is 1 to 2 points."]
