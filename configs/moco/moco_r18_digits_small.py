# MoCo v2, ResNet-18 (2-D) with the small stem and 16 channels in it, on scikit-learn's digits.
# Paper: none. It is ../sce/sce_r18_digits_small.py with MoCo's objective and views (both strong,
#        tau 0.2).
# Run:      sce-video prepare digits data/digits
#           python tools/train.py configs/moco/moco_r18_digits_small.py
# Test:     python tools/test.py configs/moco/moco_r18_digits_small.py CHECKPOINT     (or: random)
# Hardware: 1 CPU core, 1 GB.
# Expected: docs/results.md, "Images: methods at equal compute".

_base_ = "../sce/sce_r18_digits_small.py"

model = dict(
    _delete_=True,
    type="MoCo",
    backbone=dict(type="ResNet2d", depth=18, stem="small", base_channels=16, channels_last=True),
    projector=dict(
        type="MLP",
        hidden_channels=256,
        out_channels=64,
        num_layers=2,
        norm_output=False,
        bias_output=True,
    ),
    queue_size=512,
    tau=0.2,
)
data_preprocessor = dict(views=[_base_._strong, _base_._strong])
