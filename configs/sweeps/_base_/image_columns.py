# The evaluation of the paper's image ablations: a linear classifier on ImageNet100, frozen
# ResNet-50, with 8 processes.
columns = [
    dict(
        name="IN100",
        config="configs/downstream/linear/r50_8xb64-224-100e_imagenet100.py",
        training="one",
        metric="top1",
    ),
]
notes = [
    "The published numbers come from the best epoch on the validation images; measured is the "
    "last epoch.",
]
