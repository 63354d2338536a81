# ResNet3D-50 (tab:r3d) with a last stage of stride 1 and dilation 2, and a head that scores boxes:
# mean over time, RoIAlign 7x7, maximum over space, 80 sigmoids (SlowFast,
# models/head_helper.py).
model = dict(
    type="ActionDetector",
    backbone=dict(
        type="ResNet3dSlowPath",
        depth=50,
        last_stage_stride=1,
        last_stage_dilation=2,
        channels_last=False,
    ),
    roi_head=dict(type="RoIActionHead", num_classes=80, roi_size=7, stride=16, dropout_ratio=0.5),
)
pretrained = None
data_preprocessor = dict(type="BoxDataPreprocessor")
