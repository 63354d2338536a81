# Retrieval: the test videos are the queries, the training videos the gallery. retrieval_r1, ... use
# centred features (queries and gallery each by their own mean, as in the authors' code,
# juliendenize/eztorch); retrieval_plain_r1, ... are not centred. A child sets data_root and lists.
test_dataloader = dict(
    batch_size=2,
    num_workers=8,
    pin_memory=True,
    dataset=dict(type="VideoDataset", on_error="raise"),
)
test_evaluator = [dict(type="Retrieval", ks=(1, 5, 10)), dict(type="FeatureStatistics")]
test_cfg = dict(
    type="MultiViewTestLoop",
    gallery_dataloader=dict(
        batch_size=2,
        num_workers=8,
        pin_memory=True,
        dataset=dict(type="VideoDataset", on_error="raise"),
    ),
)
