"""What the paper states of the image recipes: sets, views, heads; and how tests read a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sce_video.registry import MODELS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
METHODS = {"sce": "SCE", "moco": "MoCo", "ressl": "ReSSL"}
SMALL, LARGE = "r18_1xb256-{}-200e", "r50_8xb64-224-200e"

# tab:specifc-hyper-pretrain and appendix D.1: recipe, queue, momentum at the start, learning rate
# per 256 images, weight decay, tau and tau_m of SCE's row in tab:baselines.
SETS = {
    "cifar10": (SMALL.format(32), 4096, 0.900, 0.06, 5e-4, 0.2, 0.10),
    "cifar100": (SMALL.format(32), 4096, 0.900, 0.06, 5e-4, 0.1, 0.08),
    "stl10": (SMALL.format(96), 16384, 0.996, 0.06, 5e-4, 0.1, 0.04),
    "tiny_imagenet": (SMALL.format(64), 16384, 0.996, 0.06, 5e-4, 0.1, 0.07),
    "imagenet100": (LARGE, 65536, 0.996, 0.3, 1e-4, 0.1, 0.07),
    "imagenet": (LARGE, 65536, 0.996, 0.5, 1e-4, 0.1, 0.07),
}
MULTI_CROP = "sce_multicrop_r50_16xb256-224-200e_imagenet"
# tab:augmentations: flip, jitter, brightness, contrast, saturation, hue, grey, blur, solarise.
VIEWS = {
    "weak": (0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "strong": (0.5, 0.8, 0.4, 0.4, 0.4, 0.1, 0.2, 0.5, 0.0),
    "strong-alpha": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 1.0, 0.0),
    "strong-beta": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 0.1, 0.2),
    "strong-gamma": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 0.5, 0.2),
}
# tab:specifc-hyper-pretrain; biases and affine parameters as in juliendenize/eztorch and
# juliendenize/SCE, configs/model/head/mlp. Parameters by hand: weights, biases, scale and shift.
HEADS = {
    "small": (
        "512-512, bn affine, relu, 512-128+b",
        512 * 512 + 2 * 512 + 512 * 128 + 128,
    ),
    "imagenet100": (
        "2048-4096+b, relu, 4096-256+b",
        2048 * 4096 + 4096 + 4096 * 256 + 256,
    ),
    "imagenet": (
        "2048-2048, bn affine, relu, 2048-2048, bn affine, relu, 2048-256, bn",
        2 * 2048 * 2048 + 4 * 2048 + 2048 * 256,
    ),
    "lars": (
        "2048-4096, bn affine, relu, 4096-4096, bn affine, relu, 4096-256, bn",
        2048 * 4096 + 4096 * 4096 + 4 * 4096 + 4096 * 256,
    ),
    "predictor": (
        "256-4096, bn affine, relu, 4096-256",
        256 * 4096 + 2 * 4096 + 4096 * 256,
    ),
}


def path_of(method, name):
    return CONFIGS / method / f"{method}_{SETS[name][0]}_{name}.py"


def views_of(cfg):
    names = "flip_prob jitter_prob brightness contrast saturation hue grey_prob blur_prob".split()
    built = MODELS.build(cfg.data_preprocessor).views
    assert all(view.blur_sigma == (0.1, 2.0) for view in built)
    return [tuple(getattr(view, n) for n in (*names, "solarise_prob")) for view in built]


def assert_views(cfg, *names):
    found, expected = views_of(cfg), [VIEWS[name] for name in names]
    assert [pytest.approx(view) for view in expected] == found


def described(projector, in_channels):
    """Layers of a head as text, and its number of parameters."""
    with torch.device("meta"):
        head = MODELS.build({"in_channels": in_channels, **projector})
    texts = []
    for layer in head.layers:
        if isinstance(layer, torch.nn.Linear):
            bias = "+b" if layer.bias is not None else ""
            texts.append(f"{layer.in_features}-{layer.out_features}{bias}")
        elif isinstance(layer, torch.nn.BatchNorm1d):
            texts.append("bn affine" if layer.affine else "bn")
        else:
            texts.append("relu")
    return ", ".join(texts), sum(p.numel() for p in head.parameters())
