# Linear evaluations on the datasets of tab:baselines and tab:temperature-small, each with a network
# that was pretrained on the same set. Sweeps give each point the column of its set.
_linear = {
    "ImageNet": "r50_8xb64-224-100e_imagenet",
    "IN100": "r50_8xb64-224-100e_imagenet100",
    "CIFAR10": "r18_1xb256-32-100e_cifar10",
    "CIFAR100": "r18_1xb256-32-100e_cifar100",
    "STL10": "r18_1xb256-96-100e_stl10",
    "Tiny-IN": "r18_1xb256-64-100e_tiny_imagenet",
}
columns = [
    dict(
        name=_name,
        config=f"configs/downstream/linear/{_recipe}.py",
        training="one",
        metric="top1",
    )
    for _name, _recipe in _linear.items()
]
notes = [
    "The published numbers come from the best epoch on the test images (validation images of "
    "ImageNet, ImageNet100 and Tiny-ImageNet); measured is the last epoch.",
]
