# Encoder and projector of the image baselines on CIFAR, STL10 and Tiny-ImageNet (tab:baselines): a
# ResNet-18 with the small-image stem, and 2 layers of 512 and 128, BN after the first, a bias
# in the last (paper, tab:specifc-hyper-pretrain; juliendenize/eztorch, configs/model/head/mlp/
# projector_resnet18_mlp2_bn1.yaml). The loss has one direction and no predictor. Shuffle-BN uses
# eight groups on one GPU, each with 32 of 256 images. Recipes set type, queue, momentum and
# temperatures.
model = dict(
    backbone=dict(type="ResNet2d", depth=18, stem="small"),
    projector=dict(
        type="MLP",
        hidden_channels=512,
        out_channels=128,
        num_layers=2,
        norm_output=False,
        bias_output=True,
    ),
    symmetric=False,
    shuffle_bn_splits=8,
)
