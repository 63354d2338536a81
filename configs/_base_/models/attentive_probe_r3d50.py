# Attentive probes on a frozen ResNet3D-50, one for each learning rate and weight decay. The grid is
# that of V-JEPA 2 (facebookresearch/vjepa2, configs/eval/vitl/ssv2.yaml). Its probes have three
# blocks of self-attention before the cross-attention: model.cls_head.depth=4; depth 1 is the probe
# of V-JEPA (facebookresearch/jepa, configs/evals). pretrained: as in recognizer_r3d50.py.
model = dict(
    type="Recognizer3D",
    backbone=dict(type="ResNet3dSlowPath", depth=50, channels_last=False, frozen_stages=4),
    cls_head=dict(
        type="AttentiveProbeHead",
        num_classes=400,
        in_channels=2048,
        num_heads=16,
        depth=1,
        lrs=(5e-3, 3e-3, 1e-3, 3e-4, 1e-4),
        weight_decays=(0.01, 0.1, 0.4, 0.8),
    ),
)
pretrained = None
