# CIFAR10 (docs/data.md, "Images") for pretraining, on its 50,000 training images. tools/test.py
# evaluates representations of the 10,000 test images, with the training images as the gallery.
train_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type="ResumableSampler", shuffle=True),
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(type="ImageArrayDataset", name="cifar10", data_root="data/cifar10", split="train"),
)
test_dataloader = dict(
    batch_size=256,
    num_workers=8,
    dataset=dict(type="ImageArrayDataset", name="cifar10", data_root="data/cifar10", split="test"),
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
            type="ImageArrayDataset", name="cifar10", data_root="data/cifar10", split="train"
        ),
    ),
)
