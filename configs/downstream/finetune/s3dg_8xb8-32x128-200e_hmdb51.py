# Finetuning on HMDB51: S3D-G, 32 frames at 128x128, all weights.
# Paper:    none with SCE. It uses the protocol of ResNet3D-18 with 8 frames at 224, the short side
#           8/7 of the crop. The nearest number in tab:video-sota-action is TEC, S3D-G, 32 frames of
#           128, 63.5 (mean of 3 splits).
# Run:      bash tools/dist_train.sh configs/downstream/finetune/s3dg_8xb8-32x128-200e_hmdb51.py 8 \
#               --pretrained work_dirs/sce_s3dg_8xb64-32x128-200e_k400/epoch_200.pth
# 3 splits: torchrun --nproc_per_node 8 -m sce_video finetune-splits --launcher pytorch \
#               configs/downstream/finetune/s3dg_8xb8-32x128-200e_hmdb51.py \
#               --pretrained work_dirs/sce_s3dg_8xb64-32x128-200e_k400/epoch_200.pth
# Hardware: 8 GPUs x 8 videos = global batch 64; memory not measured.
# Expected: not measured yet.

_base_ = "./r3d18_1xb64-8x224-200e_hmdb51.py"

benchmark = dict(network="s3dg", frames=32, size=128)
model = dict(
    backbone=dict(_delete_=True, type="S3D", gating=True, channels_last=False),
    cls_head=dict(in_channels=1024),
)
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        pipeline=dict(
            RandomClips=dict(num_frames=32),
            ResizeShortSide=dict(size=146),
            RandomCropClips=dict(size=128),
        )
    ),
)
val_dataloader = dict(
    dataset=dict(
        pipeline=dict(
            UniformClips=dict(num_frames=32),
            ResizeShortSide=dict(size=128),
            CenterCropClips=dict(size=128),
        )
    )
)
test_dataloader = dict(
    dataset=dict(
        pipeline=dict(
            UniformClips=dict(num_frames=32),
            ResizeShortSide=dict(size=128),
            PackVideo=dict(crop_size=128),
        )
    )
)
