# Finetuning on HMDB51: R(2+1)D-18, 16 frames at 112x112, all weights.
# Paper:    none with SCE. It uses the protocol of ResNet3D-18. The nearest number in
#           tab:video-sota-action is TEC, R(2+1)D-18, 16 frames at 112, 62.2 (mean of 3 splits).
# Run:      python tools/train.py \
#               configs/downstream/finetune/r2plus1d18_1xb64-16x112-200e_hmdb51.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# 3 splits: sce-video finetune-splits \
#               configs/downstream/finetune/r2plus1d18_1xb64-16x112-200e_hmdb51.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Hardware: 1 GPU x 64 videos = global batch 64; memory not measured.
# Expected: not measured yet.

_base_ = "./r3d18_1xb64-16x112-200e_hmdb51.py"

benchmark = dict(network="r2plus1d18")
model = dict(backbone=dict(_delete_=True, type="R2Plus1d", depth=18, channels_last=False))
