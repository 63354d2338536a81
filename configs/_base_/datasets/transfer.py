# Features of images for transfer protocols; sce-video embed names folder and list.
test_dataloader = dict(
    batch_size=64,
    num_workers=8,
    pin_memory=True,
    dataset=dict(type="ImageDataset", on_error="raise"),
)
test_evaluator = [dict(type="FeatureStatistics")]
test_cfg = dict(type="MultiViewTestLoop")
