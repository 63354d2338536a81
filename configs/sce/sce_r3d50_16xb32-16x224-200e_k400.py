# SCE, ResNet3D-50, 16 frames of 224x224, Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-action, tab:video-sota-retrieval, tab:video-sota-generalization,
#           ResNet3D-50, 16 frames.
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d50_16xb32-16x224-200e_k400.py 8
#           on each of 2 nodes, with NNODES=2, NODE_RANK=0 or 1 and MASTER_ADDR set
# Hardware: 16 GPUs x 32 videos = global batch 512 (the authors: 16 A100-80G).
# Expected: K400 linear 69.6, UCF101 95.3, HMDB51 74.7, AVA 21.6 mAP, SSv2 57.2;
#           retrieval R@1/5/10 UCF101 83.9/92.2/94.9, HMDB51 45.9/69.9/80.5.

_base_ = [
    "../_base_/default_runtime.py",
    "../_base_/datasets/kinetics400.py",
    "../_base_/models/sce_r3d50.py",
    "../_base_/views/alpha_beta_s1.0.py",
    "../_base_/schedules/lars_200e.py",
]

model = dict(queue_size=65536, lambda_=0.5, tau=0.1, tau_m=0.05)

train_dataloader = dict(
    batch_size=32,
    dataset=dict(
        pipeline=[
            dict(type="OpenVideo"),
            dict(
                type="RandomClips",
                clip_duration=2.56,
                num_frames=16,
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
    dict(type="UniformClips", clip_duration=2.56, num_frames=16, num_clips=1),
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
