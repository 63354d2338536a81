# ImageNet100, lists of `sce-video prepare imagenet --imagenet100`: the paper's 100 classes in
# both lists; tested on the 5,000 validation images.
_base_ = "./image_recognition.py"

data_preprocessor = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
train_dataloader = dict(
    dataset=dict(
        type="ImageDataset",
        data_root="data/imagenet",
        ann_file="imagenet100_train.txt",
        class_file="imagenet100_classes.txt",
    )
)
val_dataloader = dict(
    dataset=dict(
        type="ImageDataset",
        data_root="data/imagenet",
        ann_file="imagenet100_val.txt",
        class_file="imagenet100_classes.txt",
    )
)
test_dataloader = dict(
    dataset=dict(
        type="ImageDataset",
        data_root="data/imagenet",
        ann_file="imagenet100_val.txt",
        class_file="imagenet100_classes.txt",
    )
)
