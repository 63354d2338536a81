# Shared settings of the pretraining recipes on Tiny-ImageNet: views at 64x64, online strong, target
# weak (tab:augmentations, strength 0.5 is the table), monitoring by kNN (k 200, weights
# exp(sim/0.1), as lightly-ai/lightly, docs/source/getting_started/benchmarks) every 10 epochs:
# validation images against training images. The paper does not state the statistics, so they come
# from ReSSL's code for small datasets.
_base_ = [
    "../default_runtime.py",
    "../datasets/tiny_imagenet.py",
    "../pipelines/pretrain_image_64.py",
    "../views/strong_weak.py",
]

benchmark = dict(
    protocol="pretraining", dataset="tiny_imagenet", network="r18_small", frames=1, size=64
)
data_preprocessor = dict(mean=(0.4802, 0.4481, 0.3975), std=(0.2302, 0.2265, 0.2262))
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.evaluation_pipeline))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=_base_.evaluation_pipeline)))
default_hooks = dict(
    online_evaluation=dict(
        type="OnlineEvaluationHook",
        interval=10,
        metrics=[dict(type="KNN", k=200, temperature=0.1), dict(type="FeatureStatistics")],
        gallery=dict(
            batch_size=256,
            num_workers=8,
            dataset=dict(
                type="ImageDataset",
                data_root="data/tiny_imagenet",
                ann_file="train.txt",
                class_file="classes.txt",
                on_error="skip",
                pipeline=_base_.evaluation_pipeline,
            ),
        ),
        queries=dict(
            batch_size=256,
            num_workers=8,
            dataset=dict(
                type="ImageDataset",
                data_root="data/tiny_imagenet",
                ann_file="val.txt",
                class_file="classes.txt",
                on_error="skip",
                pipeline=_base_.evaluation_pipeline,
            ),
        ),
    )
)
