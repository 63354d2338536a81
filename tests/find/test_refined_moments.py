"""Moments of a search that are embedded again between the windows of the index."""

import json
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, save_tiny, write_lossless

from sce_video.commands import search
from sce_video.datasets import VideoDecodeError
from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.sources import Query
from sce_video.find.examples import own_moment, query_feature, rows_of_query
from sce_video.find.index import build_index, read_index
from sce_video.find.query import Match, query_index
from sce_video.find.refined_moments import refine_moments, windows_near
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.features import Features
from sce_video.inference.model import load_model

OPTIONS, WINDOWS = ViewOptions(num_clips=1), Windows(2.0, 1.0)


def refined_by(model, index, *given, **how):
    """Moments refined by a network of this process."""
    return refine_moments(index, *given, partial(windows_near, model, index.options), **how)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two videos of 6.4 and 4 s, their index of windows of 2 s every second, and a checkpoint."""
    made = tmp_path_factory.mktemp("moments")
    frames = np.concatenate([moving_frames(40, seed=i) for i in range(4)])
    write_lossless(made / "videos" / "long.mp4", frames)
    write_lossless(made / "videos" / "other.mp4", moving_frames(100, seed=9))
    model = load_model(save_tiny(made / "tiny.pth"), device="cpu")
    build_index(model, made / "videos", made / "index", OPTIONS, windows=WINDOWS)
    return made


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder / "tiny.pth", device="cpu")


@pytest.fixture
def index(folder):
    return read_index(folder / "index")


def feature_of(index, model, folder, start, end):
    query = Query(str(folder / "videos" / "long.mp4"), start, end)
    return query_feature(index, query, lambda: model)


def windows_at(features, starts):
    """Windows of two seconds."""
    return Features(features, ["a.mp4"] * len(starts), np.stack([starts, starts + 2.0], axis=1))


def similarities(index, feature, features, kind):
    """Cosines of (D,) with (W, D), by hand."""
    own = feature.astype(np.float64)
    features = features.astype(np.float64)
    if kind == "whitened":
        own, features = index.whitening(own), index.whitening(features)
    return features @ own / np.linalg.norm(features, axis=1) / np.linalg.norm(own)


def window_from_two_seconds(index, match):
    """The window of long.mp4, whatever random weights have found."""
    row = index.rows("long.mp4")[2]
    video = {"path": "long.mp4", "file": index.file("long.mp4")}
    return replace(match, **video, row=row, start=2.0, end=4.0)


@pytest.mark.parametrize("kind", ["plain", "whitened"])
def test_a_moment_between_two_windows_is_found(index, model, folder, kind):
    feature = feature_of(index, model, folder, 2.25, 4.25)
    how = {"whitened": kind == "whitened"}
    coarse = window_from_two_seconds(index, query_index(index, feature, 1, **how)[0])
    (match,), failures = refined_by(model, index, feature, [coarse], **how)
    assert (match.rank, match.start, match.end, failures) == (1, 2.25, 4.25, [])
    assert match.similarity == pytest.approx(1.0, abs=1e-6)

    # Of a moment at no quarter it is the best of the windows near the one that the index has, and
    # then of those near that.
    feature = feature_of(index, model, folder, 2.6, 4.6)
    (match,) = refined_by(model, index, feature, [coarse], **how)[0]
    start = 2.0
    for step in (0.25, 0.0625):
        (fine,) = embed_videos(model, coarse.file, OPTIONS, windows=Windows(2.0, step))
        expected = similarities(index, feature, fine.values, kind)
        expected[np.abs(fine.starts - start) > 3.1 * step] = -1
        start = fine.starts[expected.argmax()]
    assert match.start == start and abs(start - 2.6) < 0.1
    assert match.similarity == pytest.approx(expected.max(), abs=1e-5)


def test_the_second_pass_moves_by_sixteenths_and_may_fail(index):
    """Windows made by hand: their similarity falls with the distance from 2.3 s."""
    feature = np.asarray(index.features[0])
    away = np.roll(feature, 1)
    steps = []

    def near(file, start, end, step):
        steps.append(step)
        if step < limit:
            raise VideoDecodeError(file, "cannot be decoded now")
        starts = start + np.arange(-3, 4) * step
        distance = np.abs(starts - 2.3)[:, None]
        distance = distance.round(1) if flat else distance
        return windows_at(feature + 0.1 * distance * away, starts)

    given = [window_from_two_seconds(index, Match(1, "", 0.5, ""))]
    limit, flat = 0.0, False
    (match,) = refine_moments(index, feature, given, near, whitened=False)[0]
    assert steps == [0.25, 0.0625] and (match.start, match.end) == (2.3125, 4.3125)
    limit = 0.1
    found, failures = refine_moments(index, feature, given, near, whitened=False)
    assert [(m.start, m.end) for m in found] == [(2.25, 4.25)]
    assert len(failures) == 1 and "cannot be decoded now" in failures[0][1]
    limit, flat = 0.0, True  # 2.25, 2.3125 and others are as similar: the first pass stays
    (match,) = refine_moments(index, feature, given, near, whitened=False)[0]
    assert match.start == 2.25


@pytest.mark.parametrize("centred", [False, True])
def test_the_mean_of_the_index_is_subtracted_where_it_was(index, centred):
    """One window has the direction of the query, another that of what it adds to the mean."""
    mean = np.asarray(index.mean)
    added = np.random.default_rng(0).standard_normal(len(mean))
    added -= mean * (added @ mean) / (mean @ mean)
    query = mean + added
    features = np.array([2 * query, mean + 5 * added])

    def near(file, start, end, step):
        starts = np.array([2.25, 2.5])
        return windows_at(features, starts)

    given = [window_from_two_seconds(index, Match(1, "", 0.5, ""))]
    how = {"centred": centred, "whitened": False}
    (match,) = refine_moments(index, query, given, near, **how)[0]
    assert match.start == (2.5 if centred else 2.25)
    assert match.similarity == pytest.approx(1.0, abs=1e-6)


def test_moments_at_the_ends_stay_inside(index, model, folder):
    feature = feature_of(index, model, folder, 4.4, 6.4)
    match = refined_by(model, index, feature, query_index(index, feature, 1))[0][0]
    assert (match.start, match.end) == (pytest.approx(4.4), pytest.approx(6.4))
    feature = feature_of(index, model, folder, 0.0, 2.0)
    match = refined_by(model, index, feature, query_index(index, feature, 1))[0][0]
    assert (match.start, match.end) == (0.0, 2.0)


def test_a_query_of_the_index_does_not_find_itself(index, model, folder):
    query = Query(str(folder / "videos" / "long.mp4"), 2.0, 4.0)
    own = rows_of_query(index, query)
    feature = query_feature(index, query, lambda: model)
    matches = query_index(index, feature, 2, leave_out=own)

    def shares(match):
        return match.path == "long.mp4" and match.start < 4.0 and match.end > 2.0

    assert not any(map(shares, matches))
    free = refined_by(model, index, feature, matches)[0]
    assert any(map(shares, free))  # windows beside the query, moved onto it
    without = own_moment(index, query, own)
    assert without == {"long.mp4": [(2.0, 4.0)]}
    found = refined_by(model, index, feature, matches, without=without)[0]
    assert found and not any(map(shares, found))
    assert own_moment(index, Query(query.video), own) == {}
    # where every window is one of the query's, the moment stays
    everywhere = {name: [(0.0, 99.0)] for name in ("long.mp4", "other.mp4")}
    assert refined_by(model, index, feature, matches, without=everywhere)[0] == matches


def test_moments_of_files_that_changed_stay(index, model, folder, tmp_path):
    os.makedirs(tmp_path / "videos")
    for name in ("long.mp4", "other.mp4"):
        os.link(folder / "videos" / name, tmp_path / "videos" / name)
    build_index(model, tmp_path / "videos", tmp_path / "index", OPTIONS, windows=WINDOWS)
    moved = read_index(tmp_path / "index")
    feature = feature_of(moved, model, folder, 2.25, 4.25)
    matches = query_index(moved, feature, 5)
    (tmp_path / "videos" / "long.mp4").unlink()
    (tmp_path / "videos" / "other.mp4").unlink()
    (tmp_path / "videos" / "other.mp4").write_bytes(b"other bytes")
    found, failures = refined_by(model, moved, feature, matches)
    assert found == matches
    reasons = dict(failures)
    assert "No such file" in reasons["long.mp4"]
    assert "has changed since it was indexed" in reasons["other.mp4"]


def test_other_indexes_are_refused(index, monkeypatch):
    feature = np.asarray(index.features[0])
    for windows, message in (
        (None, "contains whole videos, but only moments can be refined"),
        (Windows(2.0, 1.0, shots=True), "end at cuts"),
    ):
        monkeypatch.setattr(index, "windows", windows)
        with pytest.raises(ValueError, match=message):
            refine_moments(index, feature, [], None)


def test_the_command(folder, tmp_path, capsys):
    query = f"{folder / 'videos' / 'long.mp4'}@2.25-4.25"
    arguments = [query, "--index", str(folder / "index"), "--no-html", "--include-self"]
    written = []
    for more in ([], ["--refine"]):
        assert search.main([*arguments, "--json", str(tmp_path / "r.json"), *more]) == 0
        written.append(json.loads((tmp_path / "r.json").read_text()))
    assert [each["refined"] for each in written] == [False, True]
    best = written[1]["results"][0]
    assert (best["path"], best["start"], best["end"]) == ("long.mp4", 2.25, 4.25)
    assert written[0]["results"][0]["start"] != 2.25
    assert "0:02.2-0:04.2" in capsys.readouterr().out

    more = ["--json", str(tmp_path / "r.json"), "--refine-moments", "2", "-k", "1"]
    assert search.main([*arguments, *more]) == 0
    few = json.loads((tmp_path / "r.json").read_text())
    assert few["refined"] and few["results"] == written[1]["results"][:1]  # of both, the first
    assert search.main(["--serve", str(folder / "index"), "--refine"]) == 2
