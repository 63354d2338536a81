# Shared settings of the pretraining recipes on ImageNet100. They equal the settings of ImageNet,
# but use the lists of the paper's 100 classes (tab:classes) for training and validation, which
# sce-video prepare imagenet --imagenet100 writes. kNN monitoring compares validation images with
# training images (k 200, weights exp(sim/0.1), as lightly-ai/lightly,
# docs/source/getting_started/benchmarks).
_base_ = "./imagenet.py"

benchmark = dict(dataset="imagenet100")
_train = dict(ann_file="imagenet100_train.txt", class_file="imagenet100_classes.txt")
_val = dict(ann_file="imagenet100_val.txt", class_file="imagenet100_classes.txt")
train_dataloader = dict(dataset=_train)
test_dataloader = dict(dataset=_val)
test_cfg = dict(gallery_dataloader=dict(dataset=_train))
default_hooks = dict(
    online_evaluation=dict(
        metrics=[dict(type="KNN", k=200, temperature=0.1), dict(type="FeatureStatistics")],
        gallery=dict(dataset=_train),
        queries=dict(
            batch_size=256,
            num_workers=8,
            dataset=dict(
                type="ImageDataset",
                data_root="data/imagenet",
                ann_file="imagenet100_val.txt",
                class_file="imagenet100_classes.txt",
                on_error="skip",
                pipeline=_base_.evaluation_pipeline,
            ),
        ),
    )
)
