# Shared settings of all classification datasets. A child sets data_root and lists, and recipes add
# the pipelines.
train_dataloader = dict(
    batch_size=64,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type="ResumableSampler", shuffle=True),
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(type="VideoDataset"),
)
# Validation during training uses one view of each test video. The last checkpoint is tested.
val_dataloader = dict(
    batch_size=16, num_workers=8, dataset=dict(type="VideoDataset", on_error="skip")
)
val_evaluator = [dict(type="TopKAccuracy"), dict(type="MeanClassAccuracy")]
val_cfg = dict(type="MultiViewValLoop")
test_dataloader = dict(
    batch_size=2,
    num_workers=8,
    pin_memory=True,
    dataset=dict(type="VideoDataset", on_error="raise"),
)
test_evaluator = [dict(type="TopKAccuracy"), dict(type="MeanClassAccuracy")]
test_cfg = dict(type="MultiViewTestLoop", max_views=30)
