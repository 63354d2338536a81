"""Small models of the methods, above all of those whose loss is a sum over queries."""

from __future__ import annotations

import torch

from sce_video.registry import MODELS

WITH_QUEUE, WITH_PREDICTOR = ("SCE", "MoCo", "ReSSL"), ("SCE", "BYOL", "MoCoV3")
QUERY_METHODS = ("SCE", "MoCo", "ReSSL", "BYOL", "MoCoV3")
TINY = dict(type="ResNet3dSlowPath", depth=18, base_channels=4, zero_init_residual=False)

#: A small variant of each backbone.
SMALL = {
    "HFEncoder": dict(
        architecture=dict(
            **dict(model_type="dinov2", image_size=32, patch_size=8, hidden_size=8),
            **dict(num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2),
        ),
        pool="mean",
    ),
    "R2Plus1d": dict(depth=18, base_channels=4),
    "ResNet2d": dict(depth=18, base_channels=4),
    "ResNet3dSlowPath": dict(depth=18, base_channels=4),
    "S3D": dict(base_channels=4, gating=True),
    "EfficientNetLite": dict(temporal=True),
    "TimmEncoder": dict(architecture="test_convnext"),
    "VisionTransformer3d": dict(depth=2, embed_dims=8, num_heads=2),
}
#: Packages that these backbones need.
NEEDED = {"HFEncoder": "transformers", "TimmEncoder": "timm"}


def build_method(name, **changes):
    """A model of a method, symmetric; its target, if any, differs from the online branch."""
    torch.manual_seed(0)
    mlp = dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False)
    options = dict(backbone=TINY, projector=dict(**mlp, out_channels=8))
    if name in QUERY_METHODS:
        options["symmetric"] = True
    if name in WITH_PREDICTOR:
        options["predictor"] = mlp
    if name in WITH_QUEUE:
        options["queue_size"] = 32
    model = MODELS.build(dict(type=name, **{**options, **changes}))
    model.init_weights()
    if name in QUERY_METHODS:
        for p in model.target.parameters():
            p.mul_(1.1).add_(0.01)
    return model


def make_views(count=3, n=6, seed=0):
    """``count`` views (n, 3, 2, 32, 32)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, 2, 32, 32, generator=generator) for _ in range(count)]


def gradients_of(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
