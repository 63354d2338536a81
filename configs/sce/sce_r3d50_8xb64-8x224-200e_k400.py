# SCE, ResNet3D-50, 8 frames of 224x224, Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-action, tab:video-sota-retrieval, tab:video-sota-generalization,
#           ResNet3D-50, 8 frames.
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d50_8xb64-8x224-200e_k400.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512 (the authors: 4 to 8 A100-80G).
# Expected: K400 linear 67.6, UCF101 94.1, HMDB51 70.5, AVA 20.3 mAP, SSv2 53.9;
#           retrieval R@1/5/10 UCF101 81.5/89.7/92.8, HMDB51 43.0/67.0/79.0.

_base_ = [
    "../_base_/default_runtime.py",
    "../_base_/datasets/kinetics400.py",
    "../_base_/models/sce_r3d50.py",
    "../_base_/views/alpha_beta_s1.0.py",
    "../_base_/schedules/lars_200e.py",
]

model = dict(queue_size=65536, lambda_=0.5, tau=0.1, tau_m=0.05)

train_dataloader = dict(
    batch_size=64,
    dataset=dict(
        pipeline=[
            dict(type="OpenVideo"),
            dict(
                type="RandomClips",
                clip_duration=2.56,
                num_frames=8,
                num_views=2,
                diff_prob=0.2,
            ),
            dict(type="DecodeClips"),
            dict(type="RandomResizedCropClips", size=224, area=(0.2, 0.766)),
            dict(type="PackClips"),
        ],
    ),
)

# One clip and the centre crop, for the judgement while training and tools/test.py. The paper's
# protocols are configs of their own.
judge_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.56, num_frames=8, num_clips=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=256),
    dict(type="PackClips"),
]
test_dataloader = dict(dataset=dict(pipeline=judge_pipeline))
test_cfg = dict(bank_dataloader=dict(dataset=dict(pipeline=judge_pipeline)))
default_hooks = dict(
    online_judge=dict(
        type="OnlineJudgeHook",
        interval=10,
        bank=dict(
            batch_size=16,
            num_workers=8,
            dataset=dict(
                type="VideoDataset",
                data_root="data/kinetics400",
                ann_file="data/kinetics400/k400_val.txt",
                pipeline=judge_pipeline,
                on_error="skip",
            ),
        ),
    )
)
