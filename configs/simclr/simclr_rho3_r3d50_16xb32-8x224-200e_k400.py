# rho-SimCLR with 3 clips, ResNet3D-50, 8 frames at 224x224 (2.13 s), Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-generalization, row rho-SimCLR (3 views). The settings come from
#           configs/simclr/simclr_rho2_r3d50_16xb32-8x224-200e_k400.py. The learning rate is
#           interpolated between SlowFast's values for rho 2 (0.6) and 4 (1.2), because it has none
#           for 3.
# Run:      bash tools/dist_train.sh configs/simclr/simclr_rho3_r3d50_16xb32-8x224-200e_k400.py 8
#           on each of 2 nodes, with NNODES=2, NODE_RANK=0 or 1 and MASTER_ADDR set
# Hardware: 16 GPUs x 32 videos = global batch 512.
# Expected: K400 linear 62.0, UCF101 split 1 87.9, AVA 17.6 mAP, SSv2 52.0.

_base_ = "./simclr_rho2_r3d50_16xb32-8x224-200e_k400.py"

train_dataloader = dict(dataset=dict(pipeline=dict(RandomClips=dict(num_views=3))))
data_preprocessor = dict(views=[_base_.rho_view] * 3)
optim_wrapper = dict(optimizer=dict(lr=0.9))
