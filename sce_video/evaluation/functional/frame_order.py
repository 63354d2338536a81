"""Orders of the frames of altered clips: shuffled, reversed, one frame repeated."""

from __future__ import annotations

import numpy as np

from sce_video.datasets.samplers import mix_seed

#: What can be done to a clip. "still" repeats its middle frame.
ALTERATIONS = ("shuffled", "reversed", "still")


def check_alterations(alterations: tuple[str, ...]) -> None:
    """Raise ValueError unless these are different entries of :data:`ALTERATIONS`, at least one."""
    unknown = sorted(set(alterations) - set(ALTERATIONS))
    if unknown or not alterations or len(set(alterations)) < len(alterations):
        raise ValueError(
            f"alterations must be different ones of {', '.join(ALTERATIONS)}, got {alterations}"
        )


def frame_order(alteration: str, num_frames: int, seed: int, clip: int = 0) -> np.ndarray:
    """Indices of the frames of a clip in the order in which the altered clip shows them.

    A shuffled clip has an order drawn uniformly from all but the original one. It depends on the
    arguments alone, so on no batch, rank or number of workers.

    Args:
        alteration: One of :data:`ALTERATIONS`.
        num_frames: T, at least 2.
        seed: Seed of the sample.
        clip: Number of the clip in the sample; each has an order of its own.

    Returns:
        (T,) int64.

    Raises:
        ValueError: a clip of one frame, an unknown alteration.
    """
    check_alterations((alteration,))
    if num_frames < 2:
        raise ValueError(
            f"clips of {num_frames} frame have no order to change: the sense of time needs clips "
            "of 2 frames or more (num_frames of the step that samples the clips)"
        )
    frames = np.arange(num_frames)
    if alteration == "reversed":
        return frames[::-1].copy()
    if alteration == "still":
        return np.full(num_frames, num_frames // 2)
    generator = np.random.default_rng(mix_seed(seed, clip))
    order = frames
    while np.array_equal(order, frames):
        order = generator.permutation(num_frames)
    return order
