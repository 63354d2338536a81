# Linear evaluation on Kinetics-400: R(2+1)D-18, 16 frames at 112x112, the backbone frozen.
# Paper:    none. It uses the protocol of ResNet3D-18, with which SCE has 56.6
#           (tab:video-sota-action).
# Run:      bash tools/dist_train.sh \
#               configs/downstream/linear/r2plus1d18_8xb64-16x112-60e_k400.py 8 \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Hardware: 8 GPUs x 64 videos = global batch 512; the backbone needs no gradients.
# Expected: not measured yet.

_base_ = "./r3d18_8xb64-16x112-60e_k400.py"

benchmark = dict(network="r2plus1d18")
model = dict(
    backbone=dict(_delete_=True, type="R2Plus1d", depth=18, channels_last=False, frozen_stages=4)
)
