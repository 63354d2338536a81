# ReSSL, ResNet-18 (2-D) with the small stem and 16 channels in it, on scikit-learn's digits.
# Paper: none. It is ../sce/sce_r18_digits_small.py with ReSSL's objective, tau 0.1, tau_m 0.04.
# Run:      sce-video prepare digits data/digits
#           python tools/train.py configs/ressl/ressl_r18_digits_small.py
# Test:     python tools/test.py configs/ressl/ressl_r18_digits_small.py CHECKPOINT   (or: random)
# Hardware: 1 CPU core, 1 GB.
# Expected: docs/results.md, "Images: methods at equal compute".

_base_ = "../sce/sce_r18_digits_small.py"

model = dict(
    _delete_=True,
    type="ReSSL",
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
    tau=0.1,
    tau_m=0.04,
)
