# Three trials of SCE, MoCo v2 and ReSSL on the validation split of the digits, at equal compute.
# Paper:    none. These are the trials behind images_digits_methods.py.
# Run:      sce-video prepare digits data/digits
#           OMP_NUM_THREADS=1 sce-video sweep configs/sweeps/images_digits_tuning.py \
#               --out work_dirs/images
# Hardware: 1 CPU core, a quarter of an hour.
# Expected: see docs/results.md.

_base_ = "_base_/image_methods.py"

_titles, _trials, _metrics = _base_._titles, _base_._trials, _base_._metrics

title = "Trials on digits, validation part"
points = [
    dict(
        name=f"{_title}, {_trial}",
        config=f"configs/{_method}/{_method}_r18_digits_small.py",
        options=_change,
    )
    for _method, _title in _titles.items()
    for _trial, _change in _trials.items()
]
columns = [
    dict(
        name=_name, metric=_metric, options={"test_dataloader.dataset.data_root": "data/digits/val"}
    )
    for _name, _metric in _metrics.items()
]
notes = ["One seed; 359 images: the standard error of a cell is 1 to 2 points."]
