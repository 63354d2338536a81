# SCE, ResNet3D-50, 8 frames at 224x224, Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-action, tab:video-sota-retrieval, tab:video-sota-generalization,
#           ResNet3D-50, 8 frames.
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d50_8xb64-8x224-200e_k400.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512 (the authors: 4 to 8 A100-80G).
# Expected: K400 linear 67.6, UCF101 94.1, HMDB51 70.5, AVA 20.3 mAP, SSv2 53.9;
#           retrieval R@1/5/10 UCF101 81.5/89.7/92.8, HMDB51 43.0/67.0/79.0.

_base_ = "./sce_r3d18_8xb64-8x224-200e_k400.py"

benchmark = dict(network="r3d50")
model = dict(
    backbone=dict(depth=50),
    projector=dict(hidden_channels=4096),
    predictor=dict(hidden_channels=4096),
)
