# Retrieval on split 1: the test videos are the queries, the training videos the bank. R centres
# both (SETTINGS 4): retrieval_r1 and so on; retrieval_plain_r1 is not centred.
split = 1
test_dataloader = dict(
    batch_size=2,
    num_workers=8,
    pin_memory=True,
    dataset=dict(
        type="VideoDataset",
        data_root="data/hmdb51",
        ann_file="data/hmdb51/test_split1.txt",
        on_error="raise",
    ),
)
test_evaluator = [dict(type="Retrieval", ks=(1, 5, 10)), dict(type="FeatureStatistics")]
test_cfg = dict(
    type="MultiViewTestLoop",
    gallery_dataloader=dict(
        batch_size=2,
        num_workers=8,
        pin_memory=True,
        dataset=dict(
            type="VideoDataset",
            data_root="data/hmdb51",
            ann_file="data/hmdb51/train_split1.txt",
            on_error="raise",
        ),
    ),
)
