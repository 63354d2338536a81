"""Objectives of distillation compared with loops, and inputs and outputs of the teacher."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.host_waits import host_waits
from helpers.query_methods import TINY, gradients_of, make_views
from torch import nn

from sce_video.models.algorithms import Distill
from sce_video.models.algorithms.distill import TeacherClip
from sce_video.models.backbones.common import rows_of_positions
from sce_video.models.losses.frame_losses import frame_scales, frame_terms
from sce_video.registry import MODELS

N, K, D = 6, 8, 32
NORMALISED = dict(type="VideoDataPreprocessor", mean=0.4, std=0.2)
WIDER = dict(type="ResNet3dSlowPath", depth=18, base_channels=4, zero_init_residual=False)


def build(objective="cosine", backbone=TINY, teacher=WIDER, dim=D, **changes) -> Distill:
    torch.manual_seed(0)
    mlp = dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False)
    encoder = dict(type="Encoder", backbone=teacher, data_preprocessor=NORMALISED)
    options = dict(projector=mlp, teacher_channels=dim, objective=objective, queue_size=K)
    model = MODELS.build(
        dict(type="Distill", backbone=backbone, teacher=encoder, **{**options, **changes})
    )
    return model.eval()


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).sum())


def oracle(objective: str, z: np.ndarray, t: np.ndarray, queue: np.ndarray) -> float:
    """Compute the mean over rows z (n, D) and the teacher's t (n, D), one row and key at a time."""
    total = 0.0
    for own, taught in zip(z, t, strict=True):
        q, k = unit(own), unit(taught)
        if objective != "relations":
            total += 1 - float(q @ k)
            continue
        relations = np.array([math.exp(float(k @ other) / 0.05) for other in queue])
        logits = [float(q @ k) / 0.1, *(float(q @ other) / 0.1 for other in queue)]
        log_sum = math.log(sum(map(math.exp, logits)))
        target = [0.5, *(0.5 * relations / relations.sum())]
        total -= sum(w * (logit - log_sum) for w, logit in zip(target, logits, strict=True))
    return total / len(z)


@pytest.mark.parametrize("objective", ["cosine", "relations"])
def test_a_step_is_the_loop_over_samples_and_keys(objective):
    """Compare the loss in float64, with stored features of two views, which the sample selects."""
    model = build(objective).double()
    features = torch.randn(9, 4, D, generator=torch.Generator().manual_seed(1)).double()
    samples = {"index": torch.tensor([3, 0, 8, 1, 1, 5]), "clip": torch.tensor([0, 3, 1, 2, 0, 3])}
    model.set_teacher(features=features)
    views = [view.double() for view in make_views(2, N)]
    queue = model.queue.keys.numpy().copy() if objective == "relations" else np.empty((0, D))
    got = model(views, samples, mode="loss")
    t = np.stack([features[i, c].numpy() for i, c in zip(*samples.values(), strict=True)])
    z = [model.projector(model.represent(view)).detach().numpy() for view in views]
    wanted = np.mean([oracle(objective, one, t, queue) for one in z])
    assert got["loss"].item() == pytest.approx(wanted, rel=1e-10)
    cosine = np.mean([unit(a) @ unit(b) for one in z for a, b in zip(one, t, strict=True)])
    assert got["positive_similarity"].item() == pytest.approx(cosine, rel=1e-9)
    assert (model.chance_level() is None) == (objective == "cosine")
    model.after_optimizer_step()
    if objective == "relations":  # each clip is one key, however many views show it
        kept = [*map(unit, t), *queue[N:]]
        np.testing.assert_allclose(model.queue.keys.numpy(), kept, atol=1e-12)


VIT = dict(type="VisionTransformer3d", depth=1, embed_dims=32, num_heads=2, patch_size=8)


IMAGES = dict(type="ResNet2d", depth=18, base_channels=4, stem="small")


@pytest.mark.parametrize("backbone", [VIT, IMAGES])
def test_tokens_are_compared_at_every_position_of_the_teachers_grid(backbone):
    """Interpolate the student's grid linearly along each axis, in the order T, H, W."""
    model = build("tokens", backbone).double()
    model._teacher[0].double()
    (view,) = (view.double() for view in make_views(1, 2))
    view = nn.functional.interpolate(view, (4, 64, 64))
    student, teacher = model.backbone(view).detach(), model.teach(view, None)
    assert student.shape[2:] != teacher.shape[2:] == (4, 2, 2)
    grid = student.numpy()
    for axis, size in zip((2, 3, 4), teacher.shape[2:], strict=True):
        own = grid.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * own / size - 0.5, 0, own - 1)
        low = np.minimum(at.astype(int), max(own - 2, 0))
        share = (at - low).reshape([-1 if a == axis else 1 for a in range(5)])
        parts = (np.take(grid, i, axis) for i in (low, np.minimum(low + 1, own - 1)))
        grid = sum(part * w for part, w in zip(parts, (1 - share, share), strict=True))
    rows = [
        (grid[n, :, t, y, x], teacher[n, :, t, y, x].numpy())
        for n, t, y, x in np.ndindex(2, 4, 2, 2)
    ]
    z = model.projector(torch.from_numpy(np.stack([row for row, _ in rows]))).detach().numpy()
    wanted = oracle("tokens", z, np.stack([t for _, t in rows]), np.empty((0, D)))
    assert model.loss([view])["loss"].item() == pytest.approx(wanted, rel=1e-9)
    pooled = torch.zeros(2, 8, 1, 1, 1)
    for features in ((pooled, teacher), (teacher, pooled)):
        with pytest.raises(ValueError, match=r"compares positions, but the (student|teacher)'s"):
            rows_of_positions(*features)


def test_the_network_sees_the_students_view_in_its_own_way():
    """Test normalisation and size of its input, its evaluation mode, and the missing gradient."""
    model = build().train()
    teacher = model._teacher[0]
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    pixels = torch.rand(2, 3, 8, 32, 32, generator=torch.Generator().manual_seed(0))
    view = (pixels - 0.45) / 0.225  # as the student's preprocessor does
    model.set_teacher(teacher, clip=TeacherClip(4, 48))
    shown = pixels[:, :, [0, 2, 4, 7]]
    shown = torch.stack([nn.functional.interpolate(x, (48, 48), mode="bilinear") for x in
                         shown.unbind(2)], dim=2)  # fmt: skip
    with torch.no_grad():
        wanted = teacher.represent((shown - 0.4) / 0.2)
    torch.testing.assert_close(model.teach(view, None), wanted, rtol=1e-4, atol=1e-5)
    model.loss([view])["loss"].backward()
    assert not gradients_of(teacher) and gradients_of(model).keys() == {
        name for name, _ in model.named_parameters()
    }
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert not [name for name in model.state_dict() if "teacher" in name]


@pytest.mark.parametrize("objective", ["cosine", "relations"])
@pytest.mark.parametrize("stored", [False, True])
def test_no_step_waits_for_the_device(objective, stored, monkeypatch):
    monkeypatch.setattr("sce_video.models.losses.collapse._is_on_host", lambda h: False)
    model, features = build(objective).train(), torch.randn(5, 4, D)
    (view,) = make_views(1, N)
    samples = {name: torch.arange(N) % 4 for name in ("index", "clip")}
    if stored:
        model.set_teacher(features=features)
    else:
        model.loss([view])  # the first step moves the teacher to the device
    networks = [model, *model._teacher]
    tensors = [t for one in networks for t in (*one.parameters(), *one.buffers())]
    with host_waits([*tensors, features, view, *samples.values()]) as waits:
        model([view], samples, mode="loss")["loss"].backward()
        model.after_optimizer_step()
    assert not waits


def test_wrong_settings_and_a_missing_teacher():
    for changes, message in (
        (
            dict(objective="l2"),
            "objective must be one of cosine, tokens, relations, frames, got 'l2'",
        ),
        (dict(tau_m=0.0), "tau_m must be a finite number above 0, got 0.0"),
        (dict(lambda_=2.0), "lambda_ must be from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            build(**changes)
    model = build("relations")
    (warning,) = model.check_training(7, 4, 1)
    assert "queue holds 8 keys and there are 7" in str(warning)
    assert build().check_training(7, 4, 1) == []
    model.set_teacher(None)
    with pytest.raises(ValueError, match="Distill has no teacher"):
        model.loss(make_views(1, 2))


def test_frames_are_predicted_by_the_projector_at_each_position():
    """Compare the loss in float64, with stored features. Unreadable videos do not affect scales."""
    model = build("frames", IMAGES).double()
    features = torch.randn(9, 2, 8, D, generator=torch.Generator().manual_seed(1)).double()
    features[4] = 0
    model.set_teacher(features=features)
    samples = {"index": torch.tensor([3, 0]), "clip": torch.tensor([0, 1])}
    (view,) = (view.double() for view in make_views(1, 2))
    got = model([view], samples, mode="loss")
    taught = torch.stack([features[3, 0], features[0, 1]])
    scales = frame_scales(features[[0, 1, 2, 3, 5, 6, 7, 8]].flatten(0, 1))
    positions = model.backbone(view).mean(dim=(3, 4)).transpose(1, 2)
    z = torch.stack([model.projector(clip) for clip in positions])
    wanted = frame_terms(z, taught, scales)
    assert got["loss"].item() == pytest.approx(sum(term.item() for term in wanted.values()))
    got["loss"].backward()
    assert gradients_of(model).keys() == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_a_linear_projector_starts_from_a_ridge_regression(noise):
    """Compare with NumPy's solution of the normal equations, for the strength that is best."""
    head = dict(type="MLP", hidden_channels=1, num_layers=1, norm_output=True, affine_output=True)
    model = build("frames", IMAGES, projector=head, dim=5).double()
    channels = model.projector.layers[0].in_features
    random = torch.Generator().manual_seed(1)
    x = 2 + torch.randn(40, 4, channels, generator=random, dtype=torch.float64)
    wanted = x[..., :5] @ torch.randn(5, 5, generator=random, dtype=torch.float64)
    taught = wanted + noise * torch.randn(40, 4, 5, generator=random, dtype=torch.float64) - 7
    model.set_teacher(features=taught[:, None])
    explained = model.start_linearly(x, taught)

    flat = taught.flatten(0, 1).numpy()
    targets = (taught.numpy() - flat.mean(axis=0)) / flat.std(axis=0)
    held = np.arange(40) % 5 == 0
    own, seen = x.numpy()[~held].reshape(-1, channels), targets[~held].reshape(-1, 5)
    other, unseen = x.numpy()[held].reshape(-1, channels), targets[held].reshape(-1, 5)
    centred = own - own.mean(axis=0)
    covariance = centred.T @ centred / len(own)
    found = []
    for strength in (1e-3, 1e-2, 1e-1, 1.0):
        penalty = strength * np.trace(covariance) / channels * np.eye(channels)
        right = centred.T @ (seen - seen.mean(axis=0)) / len(own)
        weight = np.linalg.solve(covariance + penalty, right)
        errors = (other - own.mean(axis=0)) @ weight - (unseen - seen.mean(axis=0))
        found.append(((errors**2).mean(), strength, weight))
    error, strength, weight = min(found, key=lambda one: one[0])
    assert strength == (1e-3 if noise < 1 else 1.0)  # both ends are reached
    variance = ((unseen - seen.mean(axis=0)) ** 2).mean()
    assert explained == pytest.approx(1 - error / variance)
    flat = x.flatten(0, 1)
    predicted = flat.numpy() @ weight
    predicted = torch.from_numpy(predicted - predicted.mean(axis=0))
    for training in (True, False):  # in evaluation mode, the BN uses its stored statistics
        z = model.projector.train(training)(flat)
        torch.testing.assert_close(z.detach(), predicted, rtol=1e-3, atol=1e-3)


def test_frames_need_stored_features_of_frames():
    model = build("frames", IMAGES)
    with pytest.raises(ValueError, match="needs stored features of the teacher"):
        model.loss(make_views(1, 2))
    with pytest.raises(ValueError, match=r"of each frame, \(videos, clips, T, D\), got shape"):
        model.set_teacher(features=torch.ones(3, 4, D))
