"""Candidates by frames: votes against a loop over frames, and copies among other videos."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

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


@pytest.mark.parametrize("most", [1, 30])
def test_the_cut_keeps_the_videos_with_most_votes(monkeypatch, most):
    random = np.random.default_rng(0)
    numbers = list(range(10, 40, 3))
    asked = [(a, b) for a in range(10) for b in range(10) if a != b]
    votes = random.permutation(len(asked))  # no two alike; below 3 there is no candidate
    asked = [asked[i] for i in random.permutation(len(asked))]
    asked.sort(key=lambda pair: pair[0])  # as _votes gives them, but for the order of the others
    monkeypatch.setattr(candidates, "_votes", lambda *_: (np.array(asked), votes))
    for name in ("index_vectors", "query_vectors"):
        monkeypatch.setattr(candidates, name, lambda frames: np.ones((1, 4), dtype=np.float32))
    stored = dict.fromkeys(numbers, SimpleNamespace(sampled=lambda: None))
    expected = set()
    for asker in range(10):
        own = [(v, b) for (a, b), v in zip(asked, votes, strict=True) if a == asker and v >= 3]
        for _, other in sorted(own, reverse=True)[:most]:
            expected.add((numbers[min(asker, other)], numbers[max(asker, other)]))
    found = pairs_by_frames(stored, numbers, most)
    assert [tuple(pair) for pair in found.tolist()] == sorted(expected)


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
