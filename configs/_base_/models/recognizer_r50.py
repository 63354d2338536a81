# ResNet-50 of images with mmaction2's recogniser and head: one linear layer on the average pool,
# weights N(0, 0.01), biases 0. pretrained: the checkpoint from which the backbone is loaded
# (tools/train.py --pretrained).
model = dict(
    type="Recognizer3D",
    backbone=dict(type="ResNet2d", depth=50),
    cls_head=dict(
        type="I3DHead",
        num_classes=1000,
        in_channels=2048,
        dropout_ratio=0.0,
        average_clips="prob",
    ),
)
pretrained = None
