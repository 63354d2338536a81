# rho-SwAV with 2 clips, ResNet3D-50, 8 frames at 224x224 (2.13 s), Kinetics-400, 200 epochs.
# Paper:    Feichtenhofer et al. 2021, as released: facebookresearch/SlowFast,
#           configs/contrastive_ssl/SwAV_Slow_R50_8x8.yaml. Learning rates are per 64 videos: 0.6.
#           The codes of the first two clips are predicted from all other clips, mean over the
#           pairs. Clips pass one after the other, as in slowfast/models/contrastive.py (no
#           joint_views). Differences from their code: assignments balanced over the global batch of
#           512 (theirs on one node: over each GPU's 8 videos); SyncBN over all GPUs (theirs: over
#           the 64 videos of a node); crop before colour.
# Run:      bash tools/dist_train.sh configs/swav/swav_rho2_r3d50_16xb32-8x224-200e_k400.py 8
#           on each of 2 nodes, with NNODES=2, NODE_RANK=0 or 1 and MASTER_ADDR set. For another
#           rho, make a child of this recipe like swav_rho3_r3d50_16xb32-8x224-200e_k400.py.
# Hardware: 16 GPUs x 32 videos = global batch 512: all clips of a step keep their activations, in
#           float32 (--amp bfloat16 halves them).
# Expected: README of SlowFast's projects/contrastive_ssl, rho 2: K400 linear 62.6, UCF101 split 1
#           90.2, AVA 19.2 mAP, SSv2 52.5.

_base_ = ["../_base_/rho_k400.py", "../_base_/schedules/lars_rho_200e.py"]

benchmark = dict(pretraining="swav_rho")
model = dict(
    type="SwAV",
    backbone=dict(type="ResNet3dSlowPath", depth=50, channels_last=False),
    projector=dict(
        type="MLP",
        init_cfg=_base_.rho_init,
        hidden_channels=2048,
        out_channels=128,
        num_layers=3,
        norm_output=False,
        bias_output=True,
    ),
    num_prototypes=1000,
    tau=0.1,
    epsilon=0.05,
    frozen_prototype_steps=468,  # one epoch: 239,975 videos in batches of 512
)
train_dataloader = dict(batch_size=32)
