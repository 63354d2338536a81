# SCE, ResNet3D-18, 8 frames at 224x224, Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-action and tab:video-sota-retrieval, ResNet3D-18, 8 frames at 224.
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d18_8xb64-8x224-200e_k400.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512 (the authors: A100-80G).
# Expected: K400 linear 59.8, UCF101 90.9, HMDB51 65.7;
#           retrieval R@1/5/10 UCF101 74.4/85.6/90.0, HMDB51 40.1/63.3/75.4.

_base_ = [
    "../_base_/default_runtime.py",
    "../_base_/datasets/kinetics400.py",
    "../_base_/models/sce_r3d18.py",
    "../_base_/pipelines/pretrain_8x224.py",
    "../_base_/views/alpha_beta_s1.0.py",
    "../_base_/schedules/lars_200e.py",
]

benchmark = dict(
    protocol="pretraining",
    pretraining="sce",
    dataset="kinetics400",
    network="r3d18",
    frames=8,
    size=224,
)
model = dict(queue_size=65536, lambda_=0.5, tau=0.1, tau_m=0.05)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.99, end=1.0)))
)

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
