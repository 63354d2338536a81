# Linear evaluation on Kinetics-400: S3D-G, 32 frames at 128x128, the backbone frozen.
# Paper:    none. It uses the protocol of ResNet3D-18 with 8 frames at 224, with which SCE has 59.8
#           (tab:video-sota-action). The short side has the same range relative to the crop.
# Run:      bash tools/dist_train.sh configs/downstream/linear/s3dg_8xb64-32x128-60e_k400.py 8 \
#               --pretrained work_dirs/sce_s3dg_8xb64-32x128-200e_k400/epoch_200.pth
# Hardware: 8 GPUs x 64 videos = global batch 512; the backbone needs no gradients.
# Expected: not measured yet.

_base_ = "./r3d18_8xb64-8x224-60e_k400.py"

benchmark = dict(network="s3dg", frames=32, size=128)
model = dict(
    backbone=dict(_delete_=True, type="S3D", gating=True, channels_last=False, frozen_stages=4),
    cls_head=dict(in_channels=1024),
)
train_dataloader = dict(
    dataset=dict(
        pipeline=dict(
            RandomClips=dict(num_frames=32),
            ResizeShortSide=dict(size=(146, 183)),
            RandomCropClips=dict(size=128),
        )
    )
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
