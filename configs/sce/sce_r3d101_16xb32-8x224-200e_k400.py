# SCE, ResNet3D-101, 8 frames at 224x224, Kinetics-400, 200 epochs.
# Paper:    none, because tab:r3d ends at ResNet3D-50. Depth 101 follows its rule with the block
#           counts of ResNet-101. The nearest number in tab:video-sota-action is SCE with
#           ResNet3D-50, 8 frames at 224, K400 linear 67.6, UCF101 94.1, HMDB51 70.5.
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d101_16xb32-8x224-200e_k400.py 8
#           on each of 2 nodes, with NNODES=2, NODE_RANK=0 or 1 and MASTER_ADDR set
# Hardware: 16 GPUs x 32 videos = global batch 512; memory not measured.
# Expected: not measured yet.

_base_ = "./sce_r3d50_8xb64-8x224-200e_k400.py"

benchmark = dict(network="r3d101")
model = dict(backbone=dict(depth=101))
train_dataloader = dict(batch_size=32)
