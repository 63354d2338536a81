# SCE, ResNet3D-50, 16 frames at 224x224, Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-action, tab:video-sota-retrieval, tab:video-sota-generalization,
#           ResNet3D-50, 16 frames.
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d50_16xb32-16x224-200e_k400.py 8
#           on each of 2 nodes, with NNODES=2, NODE_RANK=0 or 1 and MASTER_ADDR set
# Hardware: 16 GPUs x 32 videos = global batch 512 (the authors: 16 A100-80G).
# Expected: K400 linear 69.6, UCF101 95.3, HMDB51 74.7, AVA 21.6 mAP, SSv2 57.2;
#           retrieval R@1/5/10 UCF101 83.9/92.2/94.9, HMDB51 45.9/69.9/80.5.

_base_ = "./sce_r3d18_8xb64-8x224-200e_k400.py"

benchmark = dict(network="r3d50", frames=16)
model = dict(
    backbone=dict(depth=50),
    projector=dict(hidden_channels=4096),
    predictor=dict(hidden_channels=4096),
)
train_dataloader = dict(batch_size=32, dataset=dict(pipeline=dict(RandomClips=dict(num_frames=16))))
evaluation_steps = dict(UniformClips=dict(num_frames=16))
test_dataloader = dict(dataset=dict(pipeline=evaluation_steps))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=evaluation_steps)))
default_hooks = dict(online_evaluation=dict(gallery=dict(dataset=dict(pipeline=evaluation_steps))))
del evaluation_steps  # this recipe does not have the setting
