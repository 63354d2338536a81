# MoCo v3, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs.
# Paper:    none. This is MoCo v3 (arXiv 2104.02057) with the data, views, heads and optimiser of
#           SCE's recipe, so that only the objective differs. There is no queue, and the 512 keys of
#           the batch are the candidates. tau is the value of solo-learn for small batches. The
#           authors' 1.0 is for 4096.
# Run:      bash tools/dist_train.sh configs/moco_v3/moco_v3_r3d18_8xb64-8x224-200e_k200.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512. Candidates come from one forward pass, so fewer
#           GPUs with accumulation have fewer candidates.
# Expected: not measured yet.

_base_ = "../sce/sce_r3d18_8xb64-8x224-200e_k200.py"

benchmark = dict(pretraining="mocov3")
model = dict(
    _delete_=True,
    type="MoCoV3",
    backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False),
    projector=dict(
        type="MLP", hidden_channels=1024, out_channels=256, num_layers=3, norm_output=True
    ),
    predictor=dict(type="MLP", hidden_channels=1024, num_layers=2, norm_output=False),
    momentum=0.99,
    tau=0.2,
)
