# Shared settings of the pretraining recipes on STL10: views at 96x96, online strong, target weak
# (tab:augmentations, strength 0.5 is the table), monitoring by kNN (k 200, weights exp(sim/0.1), as
# lightly-ai/lightly, docs/source/getting_started/benchmarks) every 10 epochs: test images against
# labelled training images.
# The statistics come from juliendenize/eztorch, transforms/utils.py, which uses CIFAR10's (STL10's
# own are .4408 .4279 .3867, .2682 .2610 .2686).
_base_ = [
    "../default_runtime.py",
    "../datasets/stl10.py",
    "../pipelines/pretrain_image_96.py",
    "../views/strong_weak.py",
]

benchmark = dict(protocol="pretraining", dataset="stl10", network="r18_small", frames=1, size=96)
data_preprocessor = dict(mean=(0.4914, 0.4822, 0.4465), std=(0.2471, 0.2435, 0.2616))
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
                type="ImageArrayDataset",
                name="stl10",
                data_root="data/stl10",
                split="train",
                pipeline=_base_.evaluation_pipeline,
            ),
        ),
        queries=dict(
            batch_size=256,
            num_workers=8,
            dataset=dict(
                type="ImageArrayDataset",
                name="stl10",
                data_root="data/stl10",
                split="test",
                pipeline=_base_.evaluation_pipeline,
            ),
        ),
    )
)
