# ImageNet (ILSVRC2012) as prepared by sce-video prepare imagenet, for pretraining on its 1,281,167
# training images. tools/test.py evaluates representations of the 50,000 validation images, with the
# training images as the gallery.
train_dataloader = dict(
    batch_size=64,
    num_workers=12,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type="ResumableSampler", shuffle=True),
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(
        type="ImageDataset",
        data_root="data/imagenet",
        ann_file="imagenet_train.txt",
        class_file="imagenet_classes.txt",
    ),
)
test_dataloader = dict(
    batch_size=256,
    num_workers=8,
    dataset=dict(
        type="ImageDataset",
        data_root="data/imagenet",
        ann_file="imagenet_val.txt",
        class_file="imagenet_classes.txt",
        on_error="raise",
    ),
)
test_evaluator = [
    dict(type="KNN", k=200, temperature=0.1),
    dict(type="LinearProbe"),
    dict(type="FeatureStatistics"),
]
test_cfg = dict(
    type="MultiViewTestLoop",
    gallery_dataloader=dict(
        batch_size=256,
        num_workers=8,
        dataset=dict(
            type="ImageDataset",
            data_root="data/imagenet",
            ann_file="imagenet_train.txt",
            class_file="imagenet_classes.txt",
            on_error="skip",
        ),
    ),
)
