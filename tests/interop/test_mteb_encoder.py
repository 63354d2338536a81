"""Our networks in mteb; skipped where mteb is not installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.interop.mteb_encoder import MtebEncoder

OPTIONS = ViewOptions(num_clips=1)
TASK = dict(task_metadata=SimpleNamespace(name="Made"), hf_split="test", hf_subset="default")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Eight videos: the first half is moving waves, the second half is dark."""
    folder = tmp_path_factory.mktemp("made")
    frames = [moving_frames(12, seed=i) // (1 if i < 4 else 8) for i in range(8)]
    return [str(write_lossless(folder / f"{i}.mp4", f)) for i, f in enumerate(frames)]


def test_similarities_are_cosines(model):
    encoder = MtebEncoder(model)
    a, b = np.random.default_rng(0).normal(size=(2, 3, 5))
    cosines = (a / np.linalg.norm(a, axis=1)[:, None]) @ (b / np.linalg.norm(b, axis=1)[:, None]).T
    np.testing.assert_allclose(encoder.similarity(a, b), cosines, atol=1e-6)
    np.testing.assert_allclose(encoder.similarity_pairwise(a, b), np.diag(cosines), atol=1e-6)
    assert encoder.similarity(torch.tensor(a[0]), b).shape == (1, 3)
    assert encoder.name.startswith("sce_video/")
    with pytest.raises(ValueError, match="'organisation/model', got 'x'"):
        MtebEncoder(model, "x")


def test_features_are_those_of_embed(model, paths):
    pytest.importorskip("mteb")  # whose tasks are made of this package
    import datasets

    encoder = MtebEncoder(model, options=OPTIONS)
    named = [{"bytes": None, "path": path} for path in paths]
    stored = [{"bytes": Path(path).read_bytes(), "path": None} for path in paths]

    def encode(column, **options):
        data = datasets.Dataset.from_dict(column).cast_column("video", datasets.Video())
        return encoder.encode(SimpleNamespace(dataset=data), **TASK, **options)

    expected = embed_videos(model, paths, OPTIONS)
    np.testing.assert_array_equal(
        encode({"video": [*stored[:4], *named[4:]]}, batch_size=3), expected
    )
    for column, options, message in (
        (
            {"video": paths[:1], "text": ["a"]},
            {},
            "only videos, but the task contains .'text', 'video'",
        ),
        ({"video": paths[:1]}, {"precision": "int8"}, "must be float32, got 'int8'"),
        (
            {"video": [named[0], {"bytes": b"x", "path": None}]},
            {},
            "Made, split test: one of the videos 0",
        ),
        ({"video": [paths[0], None]}, {}, "Made, split test: video 1 is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            encode(column, **options)
