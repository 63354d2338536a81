"""The image recipes against the paper's tables (section 4.1, appendix D), number by number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sce_video.datasets.transforms import RandomResizedCropClips
from sce_video.engine.config.load import load_config
from sce_video.registry import MODELS, TRANSFORMS

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
# tab:augmentations: flip, jitter, brightness, contrast, saturation, hue, grey, blur, solarise.
VIEWS = {
    "weak": (0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "strong": (0.5, 0.8, 0.4, 0.4, 0.4, 0.1, 0.2, 0.5, 0.0),
    "strong-alpha": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 1.0, 0.0),
    "strong-beta": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 0.1, 0.2),
    "strong-gamma": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 0.5, 0.2),
}
# tab:specifc-hyper-pretrain; biases and affine parameters as in juliendenize/eztorch,
# configs/model/head/mlp. Parameters by hand: weights, biases, scale and shift.
PROJECTOR = "2048-4096, bn affine, relu, 4096-4096, bn affine, relu, 4096-256, bn"
PREDICTOR = "256-4096, bn affine, relu, 4096-256"
HEADS = {
    PROJECTOR: 2048 * 4096 + 4096 * 4096 + 4 * 4096 + 4096 * 256,
    PREDICTOR: 256 * 4096 + 2 * 4096 + 4096 * 256,
}
# Mean and standard deviation: juliendenize/eztorch, transforms/utils.py; Tiny-ImageNet: ReSSL.
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2009, 0.1984, 0.2023)),
    "stl10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "tiny_imagenet": ((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262)),
    "imagenet100": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
BASELINES = [(method, name) for method in METHODS for name in SETS]
LARS = {  # tab:sota: epochs, learning rate per 256 images, weight decay, momentum, top-1
    100: (0.6, 1e-6, 0.99, 72.1),
    200: (0.3, 1e-6, 0.99, 72.7),
    300: (0.3, 1e-6, 0.99, 73.3),
    1000: (0.3, 1.5e-6, 0.996, 74.1),
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


@pytest.mark.parametrize(("method", "name"), BASELINES)
def test_settings_of_the_baselines(method, name):
    cfg = load_config(path_of(method, name))
    recipe, queue, momentum, rate, decay, tau, tau_m = SETS[name]
    ranks, batch, size = map(int, re.search(r"(\d+)xb(\d+)-(\d+)", recipe).groups())
    small = size < 224

    assert cfg.model.type == METHODS[method]
    assert (cfg.model.queue_size, cfg.model.momentum) == (queue, momentum)
    scheduled = dict(momentum=dict(name="cosine", start=momentum, end=1.0))
    schedule = cfg.custom_hooks[0]
    assert schedule.model == scheduled
    assert schedule.lr == dict(name="warmup_cosine", warmup_epochs=5)  # to 0
    peak = {"imagenet100": 0.6, "imagenet": 1.0}.get(name, 0.06)  # appendix D.1
    assert rate * ranks * batch / schedule.base_batch_size == pytest.approx(peak)
    assert cfg.model.symmetric is False and "predictor" not in cfg.model
    settings = {
        "sce": dict(lambda_=0.5, tau=tau, tau_m=tau_m),
        "moco": dict(tau=0.2),
        "ressl": dict(tau=0.1, tau_m=0.04),
    }[method]
    assert {key: cfg.model[key] for key in settings} == settings
    assert cfg.model.get("mask_positive", True)

    # Shuffle-BN with eight groups: simulated on one GPU, or one group on each of eight.
    assert ranks * cfg.model.shuffle_bn_splits == 8 and "sync_bn" not in cfg
    assert cfg.train_dataloader.batch_size == batch
    assert ranks * batch == (256 if small else 512) and queue % (ranks * batch) == 0
    assert cfg.train_dataloader.drop_last

    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ("SGD", rate, decay)
    assert optimizer.momentum == 0.9 and not optimizer.get("nesterov")
    # Mixed precision; weight decay on all parameters, so no other groups of them.
    assert cfg.optim_wrapper.dtype == "float16"
    assert not {"constructor", "paramwise_cfg"} & set(cfg.optim_wrapper)
    assert cfg.train_cfg.max_epochs == 200
    assert_views(cfg, "strong", "strong" if method == "moco" else "weak")


@pytest.mark.parametrize(("method", "name"), BASELINES)
def test_data_of_the_baselines(method, name):
    cfg = load_config(path_of(method, name))
    size = int(re.search(r"b\d+-(\d+)", SETS[name][0])[1])
    network = "r50_2d" if size == 224 else "r18_small"
    benchmark = dict(dataset=name, network=network, frames=1, size=size, protocol="pretraining")
    assert {key: cfg.benchmark[key] for key in benchmark} == benchmark
    load, crop, _ = (TRANSFORMS.build(step) for step in cfg.train_dataloader.dataset.pipeline)
    assert load.num_views == 2 and isinstance(crop, RandomResizedCropClips)
    assert (crop.size, crop.area, crop.aspect) == (size, (0.2, 1.0), (3 / 4, 4 / 3))
    preprocessor = cfg.data_preprocessor
    assert (tuple(preprocessor["mean"]), tuple(preprocessor.std)) == STATISTICS[name]

    evaluated = [step.type for step in cfg.test_dataloader.dataset.pipeline]
    resized = ["ResizeShortSide", "CenterCropClips"] if size == 224 else []
    assert evaluated == ["LoadImage", *resized, "PackClips"]


@pytest.mark.parametrize("epochs", LARS)
def test_settings_of_lars_on_imagenet(epochs):
    """Appendix D.2 and juliendenize/eztorch, resnet50_imagenet.yaml."""
    rate, decay, momentum, top1 = LARS[epochs]
    path = CONFIGS / f"sce/sce_r50_8xb512-224-{epochs}e_imagenet.py"
    cfg = load_config(path)
    assert cfg.train_cfg.max_epochs == epochs
    assert cfg.train_dataloader.batch_size * 8 == 4096
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ("LARS", rate, decay)
    assert (optimizer.momentum, optimizer.trust_coefficient) == (0.9, 0.001)
    assert cfg.optim_wrapper.dtype == "float16"
    hook = cfg.custom_hooks[0]
    assert hook.base_batch_size == 256
    assert hook.lr == dict(name="warmup_cosine", warmup_epochs=10)
    assert hook.model == dict(momentum=dict(name="cosine", start=momentum, end=1.0))
    model = cfg.model
    assert (model.type, model.momentum, model.queue_size) == ("SCE", momentum, 65536)
    assert (model.lambda_, model.tau, model.tau_m, model.symmetric) == (0.5, 0.1, 0.07, True)
    assert cfg.sync_bn == "functional" and "shuffle_bn_splits" not in model
    assert model.backbone == dict(type="ResNet2d", depth=50)
    predictor = {"out_channels": 256, **model.predictor}
    assert described(model.projector, 2048) == (PROJECTOR, HEADS[PROJECTOR])
    assert described(predictor, 256) == (PREDICTOR, HEADS[PREDICTOR])
    assert "imagenet_train" in cfg.train_dataloader.dataset.ann_file
    crop = cfg.train_dataloader.dataset.pipeline[1]
    assert (crop.size, tuple(crop.area)) == (224, (0.2, 1.0)) and "local_size" not in crop
    assert_views(cfg, "strong-alpha", "strong-beta")
    assert f"# Expected: {top1} top-1" in path.read_text()
