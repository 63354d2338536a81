# Shared settings of the rho recipes of Feichtenhofer et al. 2021 (facebookresearch/SlowFast,
# configs/contrastive_ssl, slowfast/datasets/transform.py): Kinetics-400, rho clips of one
# distribution: jitter .6, .6, .6, hue .15 with p 0.8, grey p 0.2, blur sigma U(0.1, 2) p 0.5, flip
# p 0.5; one draw for all frames of a clip, no solarisation. The initialisation follows their code:
# no BN starts at 0 (RESNET.ZERO_INIT_FINAL_BN, False by default), heads are Caffe2's Xavier with
# biases of 0 (slowfast/utils/weight_init_helper.py). Their code augments the decoded frame and then
# crops. Here, the crop comes first as everywhere in this project, so sigma is in pixels of the
# crop, and contrast is relative to the crop's mean.
_base_ = [
    "./default_runtime.py",
    "./datasets/kinetics400.py",
    "./pipelines/pretrain_rho_8x224.py",
]

benchmark = dict(protocol="pretraining", dataset="kinetics400", network="r3d50", frames=8, size=224)
rho_view = dict(
    brightness=0.6,
    contrast=0.6,
    saturation=0.6,
    hue=0.15,
    jitter_prob=0.8,
    grey_prob=0.2,
    blur_prob=0.5,
    flip_prob=0.5,
)
data_preprocessor = dict(type="VideoDataPreprocessor", views=[rho_view] * 2)
rho_init = dict(type="Caffe2Xavier", layer="Linear")
model = dict(backbone=dict(zero_init_residual=False))

train_dataloader = dict(batch_size=64, dataset=dict(pipeline=_base_.train_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.evaluation_pipeline))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=_base_.evaluation_pipeline)))
default_hooks = dict(
    online_evaluation=dict(
        type="OnlineEvaluationHook",
        interval=10,
        gallery=dict(
            batch_size=16,
            num_workers=8,
            dataset=dict(
                type="VideoDataset",
                data_root="data/kinetics400",
                ann_file="data/kinetics400/k400_val.txt",
                pipeline=_base_.evaluation_pipeline,
                on_error="skip",
            ),
        ),
    )
)
