"""Errors of frames, clip means and motion compared with loops, and scales of targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.models.losses.frame_losses import frame_scales, frame_terms

CLIPS, FRAMES, CHANNELS = 5, 4, 3


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def motion_in_a_loop(frames: np.ndarray) -> np.ndarray:
    """Return the mean absolute difference of neighbouring frames (T, D)."""
    pairs = zip(frames[:-1], frames[1:], strict=True)
    return np.mean([abs(after - before) for before, after in pairs], axis=0)


def test_terms_are_the_loop_over_clips_in_units_of_the_targets_variance():
    features = drawn(CLIPS, FRAMES, CHANNELS) * torch.tensor([1.0, 10.0, 0.5]) + 3
    scales = frame_scales(features)
    flat = features.numpy().reshape(-1, CHANNELS)
    standard = (features.numpy() - flat.mean(0)) / flat.std(0)
    clips = np.array([clip.mean(0) for clip in standard])
    motions = np.array([motion_in_a_loop(clip) for clip in standard])
    changes = standard[:, -1] - standard[:, 0]  # a quarter of four frames is one
    student = drawn(2, FRAMES, CHANNELS, seed=1)
    found = frame_terms(student, features[1:3], scales)
    errors: dict[str, list] = {"frame_error": [], "clip_error": []}
    errors |= {"motion_error": [], "change_error": []}
    for clip, own in enumerate(student.numpy(), start=1):
        errors["frame_error"].append((own - standard[clip]) ** 2)
        errors["clip_error"].append((own.mean(0) - clips[clip]) ** 2 / clips.var(0).mean())
        motion = (motion_in_a_loop(own) - motions[clip]) ** 2
        errors["motion_error"].append(motion / motions.var(0).mean())
        change = (own[-1] - own[0] - changes[clip]) ** 2
        errors["change_error"].append(change / changes.var(0).mean())
    wanted = {name: np.mean(values) for name, values in errors.items()}
    assert {name: value.item() for name, value in found.items()} == pytest.approx(wanted)
    # The mean of the targets has an error of 1, except for the motion, which it lacks.
    constant = frame_terms(torch.zeros_like(features), features, scales)
    assert constant["frame_error"].item() == pytest.approx(1)
    assert constant["clip_error"].item() == pytest.approx(1)
    perfect = frame_terms(scales.standardise(features), features, scales)
    assert all(value.item() == pytest.approx(0, abs=1e-12) for value in perfect.values())


def test_a_student_of_fewer_positions_learns_the_mean_of_its_frames():
    features = drawn(CLIPS, FRAMES, CHANNELS)
    scales = frame_scales(features)
    halves = scales.standardise(features).unflatten(1, (2, 2)).mean(dim=2)
    assert frame_terms(halves, features, scales)["frame_error"].item() == pytest.approx(
        0, abs=1e-12
    )
    one = scales.standardise(features).mean(dim=1, keepdim=True)
    assert frame_terms(one, features, scales).keys() == {"frame_error", "clip_error"}


def test_still_clips_and_constant_channels_have_finite_errors():
    features = drawn(CLIPS, 1, CHANNELS).expand(-1, FRAMES, -1).clone()
    features[..., 0] = 7.0
    scales = frame_scales(features)
    found = frame_terms(drawn(CLIPS, FRAMES, CHANNELS, seed=1), features, scales)
    assert all(torch.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.ones(1, 4, 3), "at least 2 clips"),
        (torch.ones(4, 3), "must be \\(N, T, D\\)"),
        (torch.ones(4, 2, 3), "are the same in all frames"),
    ],
)
def test_unusable_features_are_refused(features, message):
    with pytest.raises(ValueError, match=message):
        frame_scales(features)
