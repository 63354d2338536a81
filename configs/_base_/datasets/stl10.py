# STL10 (docs/data.md, "Images") for pretraining, on its 100,000 unlabelled images (paper, section
# 4.1.2; juliendenize/eztorch, datamodules/stl10.py). tools/test.py evaluates representations of the
# 8,000 test images, with the 5,000 training images as the gallery.
train_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type="ResumableSampler", shuffle=True),
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(type="ImageArrayDataset", name="stl10", data_root="data/stl10", split="unlabeled"),
)
test_dataloader = dict(
    batch_size=256,
    num_workers=8,
    dataset=dict(type="ImageArrayDataset", name="stl10", data_root="data/stl10", split="test"),
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
        dataset=dict(type="ImageArrayDataset", name="stl10", data_root="data/stl10", split="train"),
    ),
)
