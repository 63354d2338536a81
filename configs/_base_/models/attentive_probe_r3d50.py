# Attentive probes on a frozen ResNet3D-50, one for each learning rate and weight decay. In a probe,
# one learned query attends to the tokens, followed by a linear classifier. The grid comes from
# V-JEPA 2 (facebookresearch/vjepa2, configs/eval/vitl/ssv2.yaml). Its probes also have an MLP
# (model.cls_head.mlp_ratio=4) and three blocks of self-attention before it
# (model.cls_head.depth=4). V-JEPA's probes have the MLP (facebookresearch/jepa, configs/evals).
# With 2048 channels, an MLP increases a probe from 13 M to 47 M parameters. 20 probes with
# gradients and AdamW then need 15 GB instead of 4 GB. pretrained has the same meaning as in
# recognizer_r3d50.py.
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
