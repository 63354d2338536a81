# Shared settings of the pretraining recipes on ImageNet: views at 224x224, online strong, target
# weak (tab:augmentations, strength 0.5 is the table), monitoring by kNN every 10 epochs: each
# validation image among the others, of which 49 are of its class (k 20, weights exp(sim/0.1)).
_base_ = [
    "../default_runtime.py",
    "../datasets/imagenet.py",
    "../pipelines/pretrain_image_224.py",
    "../views/strong_weak.py",
]

benchmark = dict(protocol="pretraining", dataset="imagenet", network="r50_2d", frames=1, size=224)
data_preprocessor = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.evaluation_pipeline))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=_base_.evaluation_pipeline)))
default_hooks = dict(
    online_evaluation=dict(
        type="OnlineEvaluationHook",
        interval=10,
        metrics=[dict(type="KNN", k=20, temperature=0.1), dict(type="FeatureStatistics")],
        gallery=dict(
            batch_size=256,
            num_workers=8,
            dataset=dict(
                type="ImageDataset",
                data_root="data/imagenet",
                ann_file="imagenet_val.txt",
                class_file="imagenet_classes.txt",
                on_error="skip",
                pipeline=_base_.evaluation_pipeline,
            ),
        ),
    )
)
