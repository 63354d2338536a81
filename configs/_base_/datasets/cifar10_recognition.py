# CIFAR10: 50,000 training and 10,000 test images. The statistics come from juliendenize/eztorch,
# transforms/utils.py.
_base_ = "./image_recognition.py"

data_preprocessor = dict(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="cifar10",
        data_root="data/cifar10",
        split="train",
    )
)
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="cifar10",
        data_root="data/cifar10",
        split="test",
    )
)
test_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="cifar10",
        data_root="data/cifar10",
        split="test",
    )
)
