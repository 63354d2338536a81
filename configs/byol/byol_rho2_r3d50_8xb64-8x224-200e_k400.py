# rho-BYOL with 2 clips, ResNet3D-50, 8 frames at 224x224 (2.13 s), Kinetics-400, 200 epochs.
# Paper:    Feichtenhofer et al. 2021, as released: facebookresearch/SlowFast,
#           configs/contrastive_ssl/BYOL_SlowR50_8x8.yaml. Learning rates are per 64 videos, for the
#           sum over the rho queries, which BYOL also uses here: 0.6 for rho 2, 1.2 for rho 4. The
#           squared distance has the same gradient as their cosine divided by the temperature 0.5.
#           Differences from their code: SyncBN over all GPUs (theirs: over the 64 videos of a
#           node); crop before colour.
# Run:      bash tools/dist_train.sh configs/byol/byol_rho2_r3d50_8xb64-8x224-200e_k400.py 8
#           For another rho, make a child of this recipe like
#           byol_rho3_r3d50_8xb64-8x224-200e_k400.py. For 16 frames at stride 4, set
#           benchmark.frames=16 and num_frames=16 of RandomClips in training and of UniformClips in
#           evaluation.
# Hardware: 8 GPUs x 64 videos = global batch 512 (theirs: 64 per node of 8 GPUs). One backward pass
#           per clip keeps the float32 activations of 64 clips on a GPU instead of 128.
# Expected: README of SlowFast's projects/contrastive_ssl, rho 2: K400 linear 67.4, UCF101 split 1
#           94.0, AVA 22.8 mAP, SSv2 54.4. rho 4: 70.1, 94.7; with 16 frames 71.1, 95.4.

_base_ = ["../_base_/rho_k400.py", "../_base_/schedules/lars_rho_200e.py"]

benchmark = dict(pretraining="byol_rho")
model = dict(
    type="BYOL",
    backbone=dict(type="ResNet3dSlowPath", depth=50, channels_last=False),
    projector=dict(
        type="MLP",
        init_cfg=_base_.rho_init,
        hidden_channels=4096,
        out_channels=256,
        num_layers=2,
        norm_output=False,
        bias_output=True,
    ),
    predictor=dict(
        type="MLP",
        hidden_channels=4096,
        num_layers=2,
        norm_output=False,
        bias_output=True,
        init_cfg=_base_.rho_init,
    ),
    momentum=0.996,
    backward_per_query=True,
)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.996, end=1.0)))
)
