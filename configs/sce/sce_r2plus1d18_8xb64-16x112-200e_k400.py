# SCE, R(2+1)D-18, 16 frames at 112x112, Kinetics-400, 200 epochs.
# Paper:    none. SCE has no number with this network, which is torchvision's. The recipe follows
#           ResNet3D-18 with 16 frames at 112. The nearest numbers in tab:video-sota-action are TEC,
#           R(2+1)D-18, 16 frames at 112, UCF101 88.2, HMDB51 62.2; SCE with ResNet3D-18, 16 frames
#           of 112, UCF101 89.1, HMDB51 66.6.
# Run:      bash tools/dist_train.sh configs/sce/sce_r2plus1d18_8xb64-16x112-200e_k400.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512; memory not measured.
# Expected: not measured yet.

_base_ = "./sce_r3d18_8xb64-16x112-200e_k400.py"

benchmark = dict(network="r2plus1d18")
model = dict(backbone=dict(_delete_=True, type="R2Plus1d", depth=18, channels_last=False))
