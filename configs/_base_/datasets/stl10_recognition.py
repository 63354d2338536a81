# STL10, the labelled images: 5,000 to train (all folds), 8,000 to test. The statistics come from
# juliendenize/eztorch, transforms/utils.py (means of CIFAR10).
_base_ = "./image_recognition.py"

data_preprocessor = dict(mean=(0.4914, 0.4822, 0.4465), std=(0.2471, 0.2435, 0.2616))
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="stl10",
        data_root="data/stl10",
        split="train",
    )
)
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="stl10",
        data_root="data/stl10",
        split="test",
    )
)
test_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="stl10",
        data_root="data/stl10",
        split="test",
    )
)
