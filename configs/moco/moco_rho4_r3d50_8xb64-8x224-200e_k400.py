# rho-MoCo with 4 clips, ResNet3D-50, 8 frames at 224x224 (2.13 s), Kinetics-400, 200 epochs.
# Paper:    Feichtenhofer et al. 2021, as released: facebookresearch/SlowFast,
#           configs/contrastive_ssl/MoCo_SlowR50_8x8.yaml. Learning rates are per 64 videos, for the
#           sum over the rho queries (sum_queries): 0.1 for rho 4, 0.05 for rho 2. Differences from
#           their code: keys of all GPUs are queued (theirs: of the first GPU's 8 videos, as DDP
#           copies its buffers); weights move from the first step on, against a queue of random unit
#           vectors (theirs: once the queue is full); BN over 64 videos of a GPU, keys shuffled over
#           all GPUs (8 of a node's 64); bfloat16 (float16); crop before colour.
# Run:      bash tools/dist_train.sh configs/moco/moco_rho4_r3d50_8xb64-8x224-200e_k400.py 8
#           For another rho, make a child of this recipe like
#           moco_rho3_r3d50_8xb64-8x224-200e_k400.py.
# Hardware: 8 GPUs x 64 videos = global batch 512 (theirs: 64 per node of 8 GPUs, any number of
#           nodes). One backward pass per clip keeps the activations of 64 clips on a GPU instead of
#           256.
# Expected: README of SlowFast's projects/contrastive_ssl, rho 4: K400 linear 71.0, UCF101 split 1
#           94.5, AVA 21.9 mAP, SSv2 54.0. rho 2: 66.6, 91.3, 19.7, 52.7.

_base_ = ["../_base_/rho_k400.py", "../_base_/schedules/sgd_rho_200e.py"]

benchmark = dict(pretraining="moco_rho")
model = dict(
    type="MoCo",
    backbone=dict(type="ResNet3dSlowPath", depth=50, channels_last=False),
    projector=dict(
        type="MLP",
        init_cfg=_base_.rho_init,
        hidden_channels=2048,
        out_channels=128,
        num_layers=3,
        norm_output=False,
        norm_hidden=False,
        bias=True,
    ),
    queue_size=65536,
    momentum=0.994,
    tau=0.1,
    symmetric=True,
    sum_queries=True,
    shuffle_bn_splits=1,
    backward_per_query=True,
)
train_dataloader = dict(dataset=dict(pipeline=dict(RandomClips=dict(num_views=4))))
data_preprocessor = dict(views=[_base_.rho_view] * 4)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.994, end=1.0)))
)
