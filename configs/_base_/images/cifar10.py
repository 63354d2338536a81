# Shared settings of the pretraining recipes on CIFAR10: views at 32x32, online strong, target weak
# (tab:augmentations, strength 0.5 is the table), monitoring by kNN (k 200, weights exp(sim/0.1), as
# lightly-ai/lightly, docs/source/getting_started/benchmarks) every 10 epochs: test images against
# training images.
# The statistics come from juliendenize/eztorch, transforms/utils.py.
_base_ = [
    "../default_runtime.py",
    "../datasets/cifar10.py",
    "../pipelines/pretrain_image_32.py",
    "../views/strong_weak.py",
]

benchmark = dict(protocol="pretraining", dataset="cifar10", network="r18_small", frames=1, size=32)
data_preprocessor = dict(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
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
                name="cifar10",
                data_root="data/cifar10",
                split="train",
                pipeline=_base_.evaluation_pipeline,
            ),
        ),
        queries=dict(
            batch_size=256,
            num_workers=8,
            dataset=dict(
                type="ImageArrayDataset",
                name="cifar10",
                data_root="data/cifar10",
                split="test",
                pipeline=_base_.evaluation_pipeline,
            ),
        ),
    )
)
