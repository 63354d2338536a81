# In retrieval, the test videos are the queries and the training videos the gallery. retrieval_r1
# and the like use centred features: queries and gallery each have their own mean subtracted, as in
# the authors' code (juliendenize/eztorch). retrieval_plain_r1 and the like are not centred. A child
# sets data_root and lists.
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
