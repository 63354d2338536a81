# rho-SimCLR with 2 clips, ResNet3D-50, 8 frames at 224x224 (2.13 s), Kinetics-400, 200 epochs.
# Paper:    Feichtenhofer et al. 2021, as released: facebookresearch/SlowFast,
#           configs/contrastive_ssl/SimCLR_SlowR50_8x8.yaml, with rho 2 (the file has 4). Learning
#           rates are per 64 videos, for the sum over the rho - 1 pairs of consecutive clips
#           (consecutive): 0.6 for rho 2, 1.2 for rho 4, which their file states twice (the last one
#           is used). Clips pass one after the other, as in slowfast/models/contrastive.py (no
#           joint_views). Differences from their code: SyncBN over all GPUs (theirs: over the 64
#           videos of a node); crop before colour.
# Run:      bash tools/dist_train.sh configs/simclr/simclr_rho2_r3d50_16xb32-8x224-200e_k400.py 8
#           on each of 2 nodes, with NNODES=2, NODE_RANK=0 or 1 and MASTER_ADDR set. For another
#           rho, make a child of this recipe like simclr_rho3_r3d50_16xb32-8x224-200e_k400.py.
# Hardware: 16 GPUs x 32 videos = global batch 512. All clips of a step keep their activations in
#           float32 (--amp bfloat16 halves them). Fewer GPUs with accumulation have fewer
#           candidates.
# Expected: README of SlowFast's projects/contrastive_ssl, rho 2: K400 linear 61.5, UCF101 split 1
#           88.3, AVA 17.5 mAP, SSv2 51.4.

_base_ = ["../_base_/rho_k400.py", "../_base_/schedules/lars_rho_200e.py"]

benchmark = dict(pretraining="simclr_rho")
model = dict(
    type="SimCLR",
    backbone=dict(type="ResNet3dSlowPath", depth=50, channels_last=False),
    projector=dict(
        type="MLP",
        init_cfg=_base_.rho_init,
        hidden_channels=2048,
        out_channels=128,
        num_layers=3,
        norm_output=False,
        norm_hidden=False,  # their BN_SYNC_MLP has no effect without BN_MLP
        bias=True,
    ),
    tau=0.1,
    consecutive=True,
)
train_dataloader = dict(batch_size=32)
