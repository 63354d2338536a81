# SCE, ResNet3D-18, 16 frames of 112x112, Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-action and tab:video-sota-retrieval, ResNet3D-18, 16 frames of 112.
# The clip lasts 1.28 s in this setting (SETTINGS 3).
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d18_8xb64-16x112-200e_k400.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512 (the authors: A100-80G).
# Expected: K400 linear 56.6, UCF101 89.1, HMDB51 66.6;
#           retrieval R@1/5/10 UCF101 74.5/85.9/90.5, HMDB51 37.8/62.1/73.8.

_base_ = [
    "../_base_/default_runtime.py",
    "../_base_/datasets/kinetics400.py",
    "../_base_/models/sce_r3d18.py",
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
                clip_duration=1.28,
                num_frames=16,
                num_views=2,
                diff_prob=0.2,
            ),
            dict(type="DecodeClips"),
            dict(type="RandomResizedCropClips", size=112, area=(0.2, 0.766)),
            dict(type="PackClips"),
        ],
    ),
)

# One clip and the centre crop, for the judgement while training and tools/test.py. The paper's
# protocols are configs of their own.
judge_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=1.28, num_frames=16, num_clips=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=128),
    dict(type="CenterCropClips", size=128),
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
