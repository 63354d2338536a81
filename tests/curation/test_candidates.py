"""Candidates by frames: votes against a loop over frames, and copies among other videos."""

from __future__ import annotations

from collections import Counter

import cv2
import numpy as np
import pytest
import torch

from sce_video.curation import near_duplicates as candidates
from sce_video.curation.comparison import ThumbnailFile
from sce_video.curation.matching import SIDE, Thumbnails
from sce_video.curation.near_duplicates import candidate_pairs, pairs_by_frames, unique_pairs


def test_pairs_are_kept_once_in_order():
    pairs = np.array([[3, 1], [1, 3], [0, 2], [5, 1], [0, 2]])
    assert unique_pairs(pairs).tolist() == [[0, 2], [1, 3], [1, 5]]
    assert unique_pairs(np.empty((0, 2), dtype=np.int64)).shape == (0, 2)


def test_candidates_by_features_leave_out_empty_slots():
    similar = torch.tensor([[0.9, -torch.inf], [0.9, 0.1], [0.1, -torch.inf]])
    where = torch.tensor([[1, 0], [0, 2], [1, 0]])
    assert candidate_pairs(similar, where).tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize("at_once", [1, 100])
def test_a_video_counts_once_for_a_frame(monkeypatch, at_once):
    monkeypatch.setattr(candidates, "_VOTES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    askers = np.repeat(np.arange(7), rng.integers(1, 9, 7)).astype(np.int32)
    owners = np.repeat(np.arange(7), 5).astype(np.int32)
    similar = rng.uniform(0.4, 1, (len(askers), 6)).astype(np.float32)
    where = rng.integers(0, len(owners), (len(askers), 6)).astype(np.int32)
    votes: Counter = Counter()
    for asker, values, rows in zip(askers, similar, where, strict=True):
        votes.update(
            {(asker, owners[row]) for v, row in zip(values, rows, strict=True) if v >= 0.7}
        )
    pairs, numbers = candidates._votes(similar, where, askers, owners)
    found = {tuple(pair): number for pair, number in zip(pairs.tolist(), numbers, strict=True)}
    assert found == votes


def test_a_copy_is_a_candidate_of_its_original(tmp_path):
    stored = ThumbnailFile(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(8):
        texture = cv2.resize(rng.uniform(0, 255, (24, 24)), (96, 96))
        shown = [texture[t // 2 : t // 2 + 64, t : t + 64] for t in range(32)]
        copy = [frame[4:56, 8:60] for frame in shown[6:28]]
        for place, frames in ((number, shown), (number + 10, copy)):
            small = [cv2.resize(f, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for f in frames]
            times = np.arange(len(small)) / 16
            thumbnails = np.stack(small).astype(np.uint8)
            stored.add(place, Thumbnails(thumbnails, times, len(small) / 16, 64, 64))
    found = pairs_by_frames(stored, sorted(stored.places), most=3)
    assert {(n, n + 10) for n in range(8)} <= {(a, b) for a, b in found.tolist()}
    stored.close()
