# Tiny-ImageNet, lists of `sce-video prepare tiny_imagenet`: 100,000 training images; tested on
# the 10,000 of val, because the test images have no labels. The statistics come from ReSSL's code
# for small sets.
_base_ = "./image_recognition.py"

data_preprocessor = dict(mean=(0.4802, 0.4481, 0.3975), std=(0.2302, 0.2265, 0.2262))
train_dataloader = dict(
    dataset=dict(
        type="ImageDataset",
        data_root="data/tiny_imagenet",
        ann_file="train.txt",
        class_file="classes.txt",
    )
)
val_dataloader = dict(
    dataset=dict(
        type="ImageDataset",
        data_root="data/tiny_imagenet",
        ann_file="val.txt",
        class_file="classes.txt",
    )
)
test_dataloader = dict(
    dataset=dict(
        type="ImageDataset",
        data_root="data/tiny_imagenet",
        ann_file="val.txt",
        class_file="classes.txt",
    )
)
