# Kinetics-400 as prepared by sce-video prepare kinetics, for pretraining. tools/test.py evaluates
# representations of the validation videos against those of the training videos (the gallery).
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
