# Attentive probes on a frozen ResNet3D-50, one for each learning rate and weight decay: one learned
# query attends to the tokens, then a linear classifier. The grid is that of V-JEPA 2
# (facebookresearch/vjepa2, configs/eval/vitl/ssv2.yaml). Its probes also have an MLP
# (model.cls_head.mlp_ratio=4) and three blocks of self-attention before (model.cls_head.depth=4),
# V-JEPA's have the MLP (facebookresearch/jepa, configs/evals). With 2048 channels an MLP makes 47 M
# parameters of the 13 M of a probe: 15 GB in place of 4 GB for 20 of them with gradients and AdamW.
# pretrained: as in recognizer_r3d50.py.
model = dict(
    type="Recognizer3D",
    backbone=dict(type="ResNet3dSlowPath", depth=50, channels_last=False, frozen_stages=4),
    cls_head=dict(
        type="AttentiveProbeHead",
        num_classes=400,
        in_channels=2048,
        num_heads=16,
        mlp_ratio=0,
        lrs=(5e-3, 3e-3, 1e-3, 3e-4, 1e-4),
        weight_decays=(0.01, 0.1, 0.4, 0.8),
    ),
)
pretrained = None
