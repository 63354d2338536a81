# ResNet-18 with the small-image stem (3x3, no pooling; appendix D.1) with mmaction2's
# recogniser and head: one linear layer on the average pool, weights N(0, 0.01), biases 0.
# pretrained names the checkpoint from which the backbone is loaded (tools/train.py --pretrained).
model = dict(
    type="Recognizer3D",
    backbone=dict(type="ResNet2d", depth=18, stem="small"),
    cls_head=dict(
        type="I3DHead",
        num_classes=10,
        in_channels=512,
        dropout_ratio=0.0,
        average_clips="prob",
    ),
)
pretrained = None
