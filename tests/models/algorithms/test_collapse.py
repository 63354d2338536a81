"""What collapses and what does not: short trainings of real methods on toy videos in memory.

Behind a head of several layers a collapse stays in the embeddings (``z_std``): once they are all
equal, no gradient reaches the backbone, and ``h_std`` stays as it is.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sce_video.data_tools.generated import HOWS, WHATS, render_toy_action
from sce_video.models.algorithms import BYOL, SCE
from sce_video.registry import MODELS

SEEDS = (0, 1)


class Convolutions(nn.Module):
    """Three convolutions (N, 3, T, H, W) -> (N, 32, T, H/8, W/8) with batch or layer norm."""

    out_channels = 32

    def __init__(self, norm: str) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, kernel in ((3, 16, (1, 5, 5)), (16, 32, (1, 3, 3)), (32, 32, (3, 3, 3))):
            padding = tuple(size // 2 for size in kernel)
            layers.append(nn.Conv3d(before, after, kernel, stride=(1, 2, 2), padding=padding))
            layers.append(nn.BatchNorm3d(after) if norm == "batch" else nn.GroupNorm(1, after))
            layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers)

    def forward(self, view):
        return self.layers(view)

    def pool(self, features):
        return features.mean(dim=(2, 3, 4))


@pytest.fixture(scope="module", autouse=True)
def _registered():
    MODELS.register_module(module=Convolutions)
    yield
    del MODELS.module_dict["Convolutions"]


@pytest.fixture(scope="module")
def videos():
    """(128, 3, 16, 24, 24), normalised."""
    rng = np.random.default_rng(0)
    options = dict(rng=rng, size=24, num_frames=16)
    clips = [render_toy_action(WHATS[i % 3], HOWS[i // 3 % 4], **options) for i in range(128)]
    return torch.from_numpy(np.stack(clips)).permute(0, 4, 1, 2, 3).float().sub(128).div(64)


def view_of(videos, generator):
    """Every second of five frames, flipped or not, with another light: (N, 3, 3, 24, 24)."""
    clips = []
    for video in videos:
        start = int(torch.randint(video.shape[1] - 4, (), generator=generator))
        clip = video[:, start : start + 5 : 2]
        contrast, brightness, flip = torch.rand(3, generator=generator).tolist()
        clip = clip * (0.6 + 0.8 * contrast) + brightness - 0.5
        clips.append(clip.flip(-1) if flip < 0.5 else clip)
    return torch.stack(clips)


def trained(model, videos, seed, steps, lr):
    """h_std and z_std, means over the last ten steps."""
    generator = torch.Generator().manual_seed(seed)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=lr, momentum=0.9)
    logged = {"h_std": [], "z_std": []}
    for _ in range(steps):
        batch = videos[torch.randperm(len(videos), generator=generator)[:32]]
        out = model([view_of(batch, generator) for _ in range(2)], mode="loss")
        optimizer.zero_grad()
        out["loss"].backward()
        optimizer.step()
        model.after_optimizer_step()
        for name, values in logged.items():
            values.append(out[name])
    return {name: torch.stack(values[-10:]).mean().item() for name, values in logged.items()}


def build(method, seed, norm="batch", linear=False, **options):
    """Heads of two layers with batch norm; ``linear``: a linear projector, no biases."""
    torch.manual_seed(seed)
    mlp = dict(type="MLP", hidden_channels=64, num_layers=2, norm_output=False, bias=True)
    projector = dict(mlp, num_layers=1, bias=False, norm_hidden=False) if linear else mlp
    model = method(
        backbone=dict(type="Convolutions", norm=norm),
        projector=dict(projector, out_channels=16),
        predictor=dict(mlp, bias=not linear),
        **options,
    )
    model.init_weights()
    return model.train()


def byol(seed, predictor, **options):
    model = build(BYOL, seed, momentum=0.99, **options)
    if not predictor:
        model.predictor = nn.Identity()
    return model


@pytest.mark.parametrize("seed", SEEDS)
def test_byol_collapses_without_predictor(videos, seed):
    """The embeddings; measured 0.1 without and 0.8 with predictor."""
    with_it = trained(byol(seed, True), videos, seed, 60, lr=0.05)
    without = trained(byol(seed, False), videos, seed, 60, lr=0.05)
    assert with_it["z_std"] > 0.5 and without["z_std"] < 0.25, (with_it, without)


@pytest.mark.parametrize("seed", SEEDS)
def test_byol_without_predictor_collapses_in_the_representation(videos, seed):
    """Where nothing else can: a linear head, and no batch norm in the backbone."""
    options = dict(norm="layer", linear=True)
    with_it = trained(byol(seed, True, **options), videos, seed, 40, lr=0.05)
    without = trained(byol(seed, False, **options), videos, seed, 40, lr=0.05)
    assert without["h_std"] < with_it["h_std"] / 5, (with_it, without)


def sce(seed, momentum, lambda_, predictor=True):
    settings = dict(momentum=momentum, lambda_=lambda_, tau=0.1, tau_m=0.05, queue_size=64)
    model = build(SCE, seed, **settings)
    if not predictor:
        model.predictor = nn.Identity()
    return model


@pytest.mark.parametrize("momentum", [0.0, 0.99])
def test_sce_does_not_collapse_at_any_momentum(videos, momentum):
    """At momentum 0 the target is the online branch of the step before."""
    for seed in SEEDS:
        found = trained(sce(seed, momentum, 0.5), videos, seed, 60, lr=0.05)
        assert found["z_std"] > 0.4, (seed, found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_relations_alone_collapse_and_the_positive_prevents_it(videos, seed):
    """At a high rate, momentum 0 and without predictor: ReSSL's coefficients against SCE's."""
    relations = trained(sce(seed, 0.0, (0.0, 1.0, 0.0), False), videos, seed, 150, lr=0.2)
    both = trained(sce(seed, 0.0, 0.5, False), videos, seed, 150, lr=0.2)
    assert relations["z_std"] < both["z_std"] / 2, (relations, both)
