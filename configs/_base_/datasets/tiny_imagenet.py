# Tiny-ImageNet, lists of `sce-video prepare tiny_imagenet`, for pretraining on its 100,000
# training images. tools/test.py evaluates representations of the 10,000 validation images, with the
# training images as the gallery, because the test images have no labels.
train_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type="ResumableSampler", shuffle=True),
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(
        type="ImageDataset",
        data_root="data/tiny_imagenet",
        ann_file="train.txt",
        class_file="classes.txt",
    ),
)
test_dataloader = dict(
    batch_size=256,
    num_workers=8,
    dataset=dict(
        type="ImageDataset",
        data_root="data/tiny_imagenet",
        ann_file="val.txt",
        class_file="classes.txt",
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
            data_root="data/tiny_imagenet",
            ann_file="train.txt",
            class_file="classes.txt",
            on_error="skip",
        ),
    ),
)
