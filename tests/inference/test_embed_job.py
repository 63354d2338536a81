"""One job: its users give the same rows, bit for bit, in this process and in others."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.datasets.clip_sampling import Windows
from sce_video.find.index import build_index, read_index
from sce_video.inference.embed import ViewOptions, embed_files, embed_videos
from sce_video.inference.embed_file import embed_to_file
from sce_video.inference.embed_job import EmbedJob, iterate_features
from sce_video.inference.features import read_features


@pytest.fixture
def videos(tmp_path):
    """Three videos of a folder."""
    for number in range(3):
        path = tmp_path / "videos" / f"{number}.mp4"
        path.parent.mkdir(exist_ok=True)
        write_lossless(path, moving_frames(30 + number, seed=number))
    return tmp_path / "videos"


def rows_of_index(model, videos, folder, options, windows):
    build_index(model, videos, folder, options, windows=windows)
    return np.asarray(read_index(folder).features)


def rows_of_file(model, videos, path, options, windows):
    embed_to_file(model, str(videos), path, windows, options)
    return read_features(path).values


@pytest.mark.parametrize("windows", [None, Windows(0.5, 0.25)])
@pytest.mark.parametrize("workers", [0, 2])
def test_all_users_give_the_same_rows(model, videos, tmp_path, monkeypatch, windows, workers):
    done, process = [], EmbedJob.process

    def noted(job, item):
        done.append(item.argument)
        return process(job, item)

    paths = [str(path) for path in sorted(videos.iterdir())]
    options = ViewOptions(num_clips=2, num_workers=workers)
    one = embed_videos(model, paths, ViewOptions(num_clips=2), windows=windows)
    expected = one if windows is None else np.concatenate([part.values for part in one])
    monkeypatch.setattr(EmbedJob, "process", noted)
    found = [
        np.concatenate([p.values for p in iterate_features(model, paths, options, windows)]),
        rows_of_index(model, videos, tmp_path / "index", options, windows),
        rows_of_file(model, videos, tmp_path / "f.npz", options, windows),
    ]
    if windows is None:
        found.append(embed_files(model, paths, options).values)
    for rows in found:
        np.testing.assert_array_equal(rows, expected)
    if workers == 0:
        assert sorted(done) == sorted(paths * len(found)), "each of them by the job"
