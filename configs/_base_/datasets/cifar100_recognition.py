# CIFAR100, 100 fine labels: 50,000 training and 10,000 test images. The statistics come from
# juliendenize/eztorch, transforms/utils.py (the deviations of the pixels are .2673 .2564 .2762).
_base_ = "./image_recognition.py"

data_preprocessor = dict(mean=(0.5071, 0.4865, 0.4409), std=(0.2009, 0.1984, 0.2023))
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="cifar100",
        data_root="data/cifar100",
        split="train",
    )
)
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="cifar100",
        data_root="data/cifar100",
        split="test",
    )
)
test_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="cifar100",
        data_root="data/cifar100",
        split="test",
    )
)
