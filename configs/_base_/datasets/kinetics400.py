# Kinetics-400: videos below data/kinetics400, lists of "path label" per split. No pipelines: those
# are the recipe's. tools/test.py judges queries (val) against a bank (train).
train_dataloader = dict(
    batch_size=64,
    num_workers=12,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type="ResumableSampler", shuffle=True),
    collate_fn=dict(type="sce_video.collate_views"),
    dataset=dict(
        type="VideoDataset",
        data_root="data/kinetics400",
        ann_file="data/kinetics400/k400_train.txt",
    ),
)
test_dataloader = dict(
    batch_size=16,
    num_workers=12,
    dataset=dict(
        type="VideoDataset",
        data_root="data/kinetics400",
        ann_file="data/kinetics400/k400_val.txt",
        on_error="raise",
    ),
)
test_evaluator = [
    dict(type="KNN", k=20),
    dict(type="LinearProbe"),
    dict(type="Retrieval", ks=(1, 5, 10)),
    dict(type="FeatureStatistics"),
]
test_cfg = dict(
    type="MultiViewTestLoop",
    gallery_dataloader=dict(
        batch_size=16,
        num_workers=12,
        dataset=dict(
            type="VideoDataset",
            data_root="data/kinetics400",
            ann_file="data/kinetics400/k400_train.txt",
            on_error="skip",
        ),
    ),
)
