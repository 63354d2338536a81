# SCE, MoCo v2 and ReSSL on six sets of images: the rows that the authors trained themselves.
# Paper:    tab:baselines. Other rows: MoCo v2 67.5, ReSSL 69.9 (ImageNet), 90.2, 63.8, 88.3, 46.6
#           (CIFAR10, CIFAR100, STL10, Tiny-IN) come from the papers of ReSSL and MoCo.
# Run:      sce-video sweep configs/sweeps/image_baselines.py --out work_dirs/images \
#               --columns ImageNet IN100 --nproc 8
#           sce-video sweep configs/sweeps/image_baselines.py --out work_dirs/images \
#               --columns CIFAR10 CIFAR100 STL10 Tiny-IN --jobs 8
#           The first command uses the batches for 8 GPUs, and the second one for one GPU. The
#           paper states no tau_m for ReSSL, so it is 0.04 as in ReSSL's code for ImageNet.
# Hardware: 8 GPUs; 18 points, each pretrained for 200 epochs and evaluated by a linear classifier.
#           SCE's points are also points of the other image sweeps.

_base_ = "_base_/image_sets.py"

_recipes = {
    "ImageNet": "r50_8xb64-224-200e_imagenet",
    "IN100": "r50_8xb64-224-200e_imagenet100",
    "CIFAR10": "r18_1xb256-32-200e_cifar10",
    "CIFAR100": "r18_1xb256-32-200e_cifar100",
    "STL10": "r18_1xb256-96-200e_stl10",
    "Tiny-IN": "r18_1xb256-64-200e_tiny_imagenet",
}
_methods = [  # top-1 in the order of the sets
    ("MoCo v2", "moco", (68.8, 80.5, 87.6, 61.0, 86.5, 45.9)),
    ("ReSSL", "ressl", (70.2, 81.6, 90.2, 64.0, 89.1, 49.5)),
    ("SCE", "sce", (70.5, 83.4, 90.3, 65.5, 89.9, 51.9)),
]

title = "SCE and its baselines on images"
source = "tab:baselines"
points = [
    dict(
        name=f"{_title}, {_set}",
        config=f"configs/{_method}/{_method}_{_recipe}.py",
        columns=[_set],
        published={_set: _value},
    )
    for _title, _method, _values in _methods
    for (_set, _recipe), _value in zip(_recipes.items(), _values, strict=True)
]
