# Encoder and projector of the image baselines on CIFAR, STL10 and Tiny-ImageNet (tab:baselines): a
# ResNet-18 with the stem for small images, and 2 layers of 512 and 128, BN after the first, a bias
# in the last (paper, tab:specifc-hyper-pretrain; juliendenize/eztorch, configs/model/head/mlp/
# projector_resnet18_mlp2_bn1.yaml). One direction, no predictor. Shuffle-BN with eight groups, here
# on one GPU: each of 32 of 256 images. Recipes give type, queue, momentum, temperatures.
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
