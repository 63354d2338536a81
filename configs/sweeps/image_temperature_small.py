# Temperatures of the online and of the target distribution, tau and tau_m, on four small sets.
# Paper:    tab:temperature-small (appendix E).
# Run:      sce-video sweep configs/sweeps/image_temperature_small.py --out work_dirs/images \
#               --jobs 8
#           For one set, use --columns CIFAR10, and for three seeds --seeds 0 1 2. The paper states
#           no spread, and neighbouring values on CIFAR10 differ by 0.1.
# Hardware: any number of GPUs, one for each of --jobs; 64 points, each pretrained for 200 epochs
#           (256 images) and evaluated by a linear classifier.

_base_ = "_base_/image_sets.py"

_tau_m = (0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1)
_sets = {  # pretraining recipe, its temperatures, top-1 by tau
    "CIFAR10": (
        "sce_r18_1xb256-32-200e_cifar10",
        (0.2, 0.1),
        {
            0.1: (89.93, 90.03, 90.06, 90.20, 90.16, 90.06, 89.67, 88.97),
            0.2: (89.98, 90.12, 90.12, 90.05, 90.13, 90.09, 90.22, 90.34),
        },
    ),
    "CIFAR100": (
        "sce_r18_1xb256-32-200e_cifar100",
        (0.1, 0.08),
        {
            0.1: (64.49, 64.90, 65.19, 65.33, 65.27, 65.45, 64.89, 63.87),
            0.2: (63.71, 63.74, 63.89, 64.05, 64.24, 64.23, 64.10, 64.30),
        },
    ),
    "STL10": (
        "sce_r18_1xb256-96-200e_stl10",
        (0.1, 0.04),
        {
            0.1: (89.34, 89.94, 89.87, 89.84, 89.72, 89.52, 88.99, 88.41),
            0.2: (88.4, 88.23, 88.4, 88.35, 87.54, 88.32, 88.80, 88.59),
        },
    ),
    "Tiny-IN": (
        "sce_r18_1xb256-64-200e_tiny_imagenet",
        (0.1, 0.07),
        {
            0.1: (50.23, 51.12, 51.41, 51.66, 51.90, 51.58, 51.37, 50.46),
            0.2: (48.56, 48.85, 48.35, 48.98, 49.06, 49.15, 49.66, 49.64),
        },
    ),
}

title = "tau, tau_m (lambda 0.5), SCE with ResNet-18"
source = "tab:temperature-small"
columns = [column for column in _base_.columns if column["name"] in _sets]
# Options are given only if they change the recipe, so that equal settings are pretrained once.
points = [
    dict(
        name=f"{_set}: {_tau}, {_m:.2f}",
        config=f"configs/sce/{_recipe}.py",
        options={
            **({} if _tau == _own[0] else {"model.tau": _tau}),
            **({} if _m == _own[1] else {"model.tau_m": _m}),
            **(
                {}
                if (_tau, _m) == _own
                else {"benchmark.pretraining": f"sce_images_tau_{_tau}_tau_m_{_m}"}
            ),
        },
        columns=[_set],
        published={_set: _value},
    )
    for _set, (_recipe, _own, _top1) in _sets.items()
    for _tau, _values in _top1.items()
    for _m, _value in zip(_tau_m, _values, strict=True)
]
