"""From samples to batches."""

from __future__ import annotations

import pytest
import torch

from sce_video.datasets import collate_views


def sample(index, frames=2, views=2, failures=()):
    inputs = [
        torch.full((frames, 4, 5, 3), 10 * index + v, dtype=torch.uint8) for v in range(views)
    ]
    return {"inputs": inputs, "label": index + 1, "index": index, "seed": 2**62 + index,
            "failures": list(failures)}  # fmt: skip


def test_stacks_view_by_view():
    batch = collate_views([sample(3, failures=[("a", "bad")]), sample(5), sample(1)])
    assert [tuple(view.shape) for view in batch["inputs"]] == [(3, 2, 4, 5, 3)] * 2
    assert all(view.dtype == torch.uint8 for view in batch["inputs"])
    assert batch["inputs"][1][:, 0, 0, 0, 0].tolist() == [31, 51, 11]
    assert batch["label"].tolist() == [4, 6, 2] and batch["index"].tolist() == [3, 5, 1]
    assert batch["seed"].tolist() == [2**62 + 3, 2**62 + 5, 2**62 + 1]
    assert batch["failures"] == [("a", "bad")]


def test_skipped_samples_are_dropped_and_their_failures_kept():
    skipped = {"inputs": None, "failures": [("x.mp4", "empty")]}
    batch = collate_views([skipped, sample(2), skipped])
    assert batch["index"].tolist() == [2] and len(batch["failures"]) == 2
    empty = collate_views([skipped])
    assert empty["inputs"] == [] and empty["label"].shape == (0,)
    assert empty["label"].dtype == torch.int64 and empty["failures"] == [("x.mp4", "empty")]


def test_unequal_samples_are_explained():
    with pytest.raises(ValueError, match=r"different shapes.*crop"):
        collate_views([sample(0), sample(1, frames=3)])
    with pytest.raises(ValueError, match="numbers of views"):
        collate_views([sample(0), sample(1, views=3)])


def video(index, frames, failures=()):
    return {
        "frames": torch.full((frames, 4, 5 + index, 3), index, dtype=torch.uint8),
        "positions": torch.tensor([[0, frames - 1]]),
        "offsets": torch.tensor([[0, 0], [0, 1]]),
        "crop_size": 4,
        **{"label": index + 1, "index": index, "seed": index, "failures": list(failures)},
    }


def test_videos_of_any_size_stay_one_by_one():
    skipped = {"inputs": None, "failures": [("b", "broken")]}
    batch = collate_views([video(1, 3), skipped, video(2, 7, [("a", "bad")])])
    assert [tuple(v["frames"].shape) for v in batch["videos"]] == [(3, 4, 6, 3), (7, 4, 7, 3)]
    assert set(batch["videos"][0]) == {"frames", "positions", "offsets", "crop_size"}
    assert "inputs" not in batch
    assert batch["label"].tolist() == [2, 3] and batch["index"].tolist() == [1, 2]
    assert batch["failures"] == [("b", "broken"), ("a", "bad")]
