# ResNet3D-50 (tab:r3d) with mmaction2's recogniser and head. pretrained: the checkpoint from which
# the backbone is loaded (tools/train.py --pretrained).
model = dict(
    type="Recognizer3D",
    backbone=dict(type="ResNet3dSlowPath", depth=50, channels_last=False),
    cls_head=dict(
        type="I3DHead",
        num_classes=400,
        in_channels=2048,
        dropout_ratio=0.5,
        average_clips="prob",
    ),
)
pretrained = None
