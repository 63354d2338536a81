# AVA v2.2 as prepared by sce-video prepare ava: key frames of 235 and 64 films with person boxes.
# Training uses the ground truth and detections that match it (with include_unmatched=True also the
# other detections, without any action), and testing uses detections with a score of at least 0.9.
# Recipes add the pipelines.
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type="ResumableSampler", shuffle=True),
    collate_fn=dict(type="sce_video.collate_boxes"),
    dataset=dict(
        type="AVADataset",
        data_root="data/ava",
        ann_file="data/ava/ava_train.jsonl",
        training=True,
        min_score=0.9,
        include_unmatched=False,
    ),
)
# A batch has one sample, because test frames keep their shape, which differs between films.
test_dataloader = dict(
    batch_size=1,
    num_workers=8,
    pin_memory=True,
    collate_fn=dict(type="sce_video.collate_boxes"),
    dataset=dict(
        type="AVADataset",
        data_root="data/ava",
        ann_file="data/ava/ava_val.jsonl",
        min_score=0.9,
        on_error="raise",
    ),
)
test_evaluator = [
    dict(type="AVAMeanAP", actions="data/ava/ava_actions.json", csv="ava_results.csv"),
]
test_cfg = dict(type="MultiViewTestLoop")
