# Encoder and projector of the image ablations and baselines on ImageNet100 (tab:lambda to
# tab:baselines): a ResNet-50, and 2 layers of 4096 and 256, biases, no BN (paper,
# tab:specifc-hyper-pretrain; juliendenize/eztorch, configs/model/head/mlp/
# projector_resnet50_mlp2.yaml). The loss has one direction and no predictor. Shuffle-BN works
# between eight GPUs, with one group of 64 images on each. Recipes set type, queue, momentum and
# temperatures.
model = dict(
    backbone=dict(type="ResNet2d", depth=50),
    projector=dict(
        type="MLP",
        hidden_channels=4096,
        out_channels=256,
        num_layers=2,
        norm_output=False,
        norm_hidden=False,
        bias=True,
    ),
    symmetric=False,
    shuffle_bn_splits=1,
)
