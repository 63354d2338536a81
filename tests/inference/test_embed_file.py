"""Windows of videos in a file: as embed_videos gives them, resumed, and without any result."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.datasets.clip_sampling import Windows
from sce_video.inference.embed import ViewOptions, embed_files, embed_videos
from sce_video.inference.embed_file import embed_to_file
from sce_video.inference.embed_job import EmbedJob
from sce_video.inference.features import read_features
from sce_video.jobs.process_pool import WorkersEndedError

WINDOWS, OPTIONS = Windows(1.0, 0.5), ViewOptions(num_clips=1)


@pytest.fixture
def folder(tmp_path):
    """Three videos, of which one is no video."""
    for name, frames in (("a.mp4", 60), ("sub/b.mp4", 40), ("c.mp4", 30)):
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        write_lossless(tmp_path / "videos" / name, moving_frames(frames, seed=frames))
    (tmp_path / "videos" / "c.mp4").write_bytes(b"no video")
    return tmp_path / "videos"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_has_the_windows_of_all_videos(model, folder, tmp_path, workers):
    options = ViewOptions(num_clips=1, num_workers=workers)
    found = embed_to_file(model, str(folder), tmp_path / "f.npz", WINDOWS, options)
    read = read_features(tmp_path / "f.npz")
    wanted = embed_videos(model, [folder / "a.mp4", folder / "sub/b.mp4"], OPTIONS, windows=WINDOWS)
    np.testing.assert_array_equal(read.values, np.concatenate([one.values for one in wanted]))
    np.testing.assert_array_equal(read.spans, np.concatenate([one.spans for one in wanted]))
    assert read.paths == ["a.mp4"] * len(wanted[0]) + ["sub/b.mp4"] * len(wanted[1])
    assert [path for path, _ in read.failures] == ["c.mp4"] and found.failures == read.failures
    assert read.provenance["windows"] == WINDOWS.to_dict() and read.num_views == 1
    assert read.provenance["checkpoint"]["sha256"] == model.checkpoint_sha256
    assert not (tmp_path / "f.npz.parts").exists()
    with pytest.raises(ValueError, match=r"f\.npz exists"):
        embed_to_file(model, str(folder), tmp_path / "f.npz", WINDOWS, options)


def test_an_interrupted_run_resumes(model, folder, tmp_path, monkeypatch):
    embedded, process = [], EmbedJob.process

    def interrupted(job, item):
        if len(embedded) == 1:
            raise KeyboardInterrupt
        embedded.append(item.key)
        return process(job, item)

    how = (model, str(folder), tmp_path / "f.npz", WINDOWS)
    monkeypatch.setattr(EmbedJob, "process", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embed_to_file(*how, OPTIONS)
    with pytest.raises(ValueError, match="belongs to another checkpoint, dataset or pipeline"):
        embed_to_file(*how, ViewOptions(num_clips=2))
    embedded.append("")
    embed_to_file(*how, OPTIONS)
    assert sorted(embedded) == ["", "a.mp4", "c.mp4", "sub/b.mp4"], "every video once"
    whole = embed_to_file(*how[:2], tmp_path / "whole.npz", WINDOWS, OPTIONS)
    assert read_features(tmp_path / "f.npz").paths == whole.paths


def test_a_network_that_cannot_be_pickled_is_refused(model, folder):
    encoder = copy.deepcopy(model.encoder)
    encoder.activation = lambda x: x
    own = replace(model, encoder=encoder)
    assert len(embed_files(own, [folder / "a.mp4"], OPTIONS)) == 1
    with pytest.raises(WorkersEndedError, match=r"embed cannot be sent to other.*--workers 0"):
        embed_files(own, [folder / "a.mp4"], ViewOptions(num_clips=1, num_workers=1))


def test_nothing_is_written_if_nothing_could_be_embedded(model, folder, tmp_path):
    shutil.rmtree(folder / "sub")
    (folder / "a.mp4").unlink()
    with pytest.raises(ValueError, match=r"nothing was embedded: c\.mp4: cannot be opened"):
        embed_to_file(model, str(folder), tmp_path / "f.npz", WINDOWS, OPTIONS)
    assert not (tmp_path / "f.npz").exists()
    with pytest.raises(FileNotFoundError, match="no video or folder at nothing"):
        embed_to_file(model, "nothing", tmp_path / "f.npz", WINDOWS, OPTIONS)
