"""Windows of long videos: features, index, search by moment."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, write_lossless
from helpers.videos import remux

from sce_video.datasets.clip_sampling import Windows, window_spans
from sce_video.datasets.readers.base import STREAMED_FRAMES
from sce_video.datasets.sources import Query, parse_query
from sce_video.find.examples import query_feature, rows_of_query
from sce_video.find.index import build_index, read_index
from sce_video.find.query import query_index
from sce_video.inference import windows as windows_module
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.network_input import ArrayReader
from sce_video.inference.npz_files import read_npz, write_npz
from sce_video.inference.windows import pack_windows

OPTIONS, WINDOWS, FPS = ViewOptions(num_clips=1), Windows(2.0, 1.0), 25
TWO = ViewOptions(num_clips=2)


@pytest.fixture(scope="module")
def frames():
    return moving_frames(160, seed=3)


@pytest.fixture(scope="module")
def long_video(tmp_path_factory, frames):
    """6.4 seconds, with key frames inside the windows."""
    return write_lossless(tmp_path_factory.mktemp("long") / "long.mp4", frames)


@pytest.fixture
def long_root(tmp_path, long_video):
    """The long video and a short one."""
    (tmp_path / "videos").mkdir()
    shutil.copy(long_video, tmp_path / "videos" / "long.mp4")
    write_lossless(tmp_path / "videos" / "short.mp4", moving_frames(30, seed=9))
    return tmp_path / "videos"


def by_hand(model, frames, spans, options=OPTIONS):
    """Features of the frames of each span, as a video of their own."""
    parts = [frames[round(start * FPS) : round(end * FPS)] for start, end in spans]
    return np.concatenate([embed_videos(model, part, options, fps=FPS) for part in parts])


def test_a_window_equals_a_video_of_its_frames(model, frames, long_video):
    (found,) = embed_videos(model, long_video, TWO, windows=WINDOWS)
    assert found.starts.tolist() == pytest.approx([0, 1, 2, 3, 4, 4.4])
    assert found.ends.tolist() == pytest.approx([2, 3, 4, 5, 6, 6.4])
    np.testing.assert_array_equal(found.values, by_hand(model, frames, found.spans, TWO))
    (of_array,) = embed_videos(model, frames, TWO, fps=FPS, windows=WINDOWS)
    np.testing.assert_array_equal(of_array.values, found.values)


def test_frames_are_forgotten_however_long_the_video_is(model, monkeypatch):
    """Of 3000 frames those of a window and of the part that is being read are held."""
    held, views = [], windows_module.window_views
    monkeypatch.setattr(
        windows_module,
        "window_views",
        lambda frames, *rest: (held.append(len(frames)), views(frames, *rest))[1],
    )
    reader = ArrayReader(np.zeros((3000, 32, 32, 3), dtype=np.uint8), FPS)
    spans = window_spans(reader.duration, WINDOWS)
    packed = pack_windows(model, reader, spans, OPTIONS)
    assert sum(sample is not None for sample in packed) == len(spans) == len(held) == 119
    assert max(held) <= 2 * FPS + STREAMED_FRAMES


def test_a_video_that_was_cut_off_keeps_its_windows(model, tmp_path, frames, long_video):
    whole = tmp_path / "whole.mp4"
    remux(long_video, whole, movflags="faststart")
    content = whole.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) * 6 // 10])
    (found,) = embed_videos(model, tmp_path / "cut.mp4", OPTIONS, windows=WINDOWS)
    assert 2 <= len(found) < 6 and found.starts[0] == 0
    assert "s instead of 6.40 s, so it was cut off" in found.reason
    whole = found.ends < found.ends[-1] - 0.5  # of the last one, a frame may be damaged
    expected = by_hand(model, frames, found.spans[whole])
    np.testing.assert_array_equal(found.values[whole], expected)

    (tmp_path / "videos").mkdir()
    shutil.copy(tmp_path / "cut.mp4", tmp_path / "videos" / "cut.mp4")
    report = build_index(model, tmp_path / "videos", tmp_path / "index", OPTIONS, windows=WINDOWS)
    assert (report.videos, report.windows, report.failures) == (1, len(found), [])
    assert report.incomplete == [("cut.mp4", found.reason)]
    index = read_index(tmp_path / "index")
    assert len(index) == len(found) and index.failures == []


@pytest.mark.parametrize("table", [False, True])
def test_an_index_of_windows(model, long_root, tmp_path, table):
    if table:
        pytest.importorskip("lance")
    where = tmp_path / "index"
    report = build_index(model, long_root, where, OPTIONS, windows=WINDOWS, table=table)
    assert (report.videos, report.windows, report.new) == (2, 7, 2)
    index = read_index(where)
    assert index.windows == WINDOWS
    (found,) = embed_videos(model, long_root / "long.mp4", OPTIONS, windows=WINDOWS)
    rows = index.rows("long.mp4")
    np.testing.assert_array_equal(np.asarray(index.features[np.array(rows)]), found.values)
    np.testing.assert_array_equal(index.spans[rows], found.spans)

    # Unchanged files are kept; a changed one loses its old windows.
    again = build_index(model, long_root, where, OPTIONS, windows=WINDOWS)
    assert (again.kept, again.new, again.windows) == (2, 0, 7)
    write_lossless(long_root / "long.mp4", moving_frames(75, seed=5))
    changed = build_index(model, long_root, where, OPTIONS, windows=WINDOWS)
    assert (changed.kept, changed.changed, changed.windows) == (1, 1, 3)
    index = read_index(where)
    (found,) = embed_videos(model, long_root / "long.mp4", OPTIONS, windows=WINDOWS)
    rows = np.array(index.rows("long.mp4"))
    np.testing.assert_array_equal(np.asarray(index.features[rows]), found.values)
    with pytest.raises(ValueError, match="windows"):
        build_index(model, long_root, where, OPTIONS)


def test_an_index_with_paths_in_any_order(model, long_root, tmp_path):
    """As another program may write it: searched, and updated without a new embedding."""
    build_index(model, long_root, tmp_path / "index", OPTIONS, windows=WINDOWS)
    before, file = read_index(tmp_path / "index"), tmp_path / "index" / "features.npz"
    arrays, provenance = read_npz(file, "an index")
    order = np.random.default_rng(1).permutation(len(before))
    assert (np.diff(order) < 0).any() and before.paths != [before.paths[i] for i in order]
    rows = {name: array[order] for name, array in arrays.items() if name != "mean"}
    write_npz(file, {**rows, "mean": arrays["mean"]}, provenance)
    index = read_index(tmp_path / "index")
    assert index.row("none.mp4") is None and index.rows("z.mp4") == []
    for path in set(before.paths):
        own = before.rows(path)
        assert order[index.rows(path)].tolist() == own
        assert order[index.row(path)] == own[0]
    feature = np.asarray(before.features[3])
    for shown, expected in zip(*(query_index(i, feature, 9) for i in (index, before)), strict=True):
        assert replace(shown, row=0) == replace(expected, row=0)
    (long_root / "extra.mp4").write_bytes((long_root / "long.mp4").read_bytes())
    build_index(model, long_root, tmp_path / "index", OPTIONS, windows=WINDOWS)
    after = read_index(tmp_path / "index")
    assert after.order is None
    own = np.array(after.rows("long.mp4"))
    np.testing.assert_array_equal(
        after.features[own], before.features[np.array(before.rows("long.mp4"))]
    )


def test_a_moment_is_found_and_neighbours_are_merged(model, long_root, tmp_path):
    build_index(model, long_root, tmp_path / "index", OPTIONS, windows=WINDOWS)
    index = read_index(tmp_path / "index")
    query = parse_query(f"{long_root / 'long.mp4'}@2-4")
    assert query == Query(str(long_root / "long.mp4"), 2.0, 4.0)
    feature = query_feature(index, query, lambda: model)
    np.testing.assert_array_equal(feature, index.features[index.rows("long.mp4")[2]])

    (best,) = query_index(index, feature, 1)
    assert (best.path, best.start, best.end) == ("long.mp4", 2.0, 4.0)
    assert best.similarity == pytest.approx(1.0, abs=1e-6)
    merged = query_index(index, feature, 7)
    assert {m.path for m in merged} == {"long.mp4", "short.mp4"} and len(merged) == 2
    (whole,) = (m for m in merged if m.path == "long.mp4")
    assert (whole.start, whole.end) == (0.0, pytest.approx(6.4))

    own = rows_of_query(index, query)
    assert index.spans[own][:, 0].tolist() == [1.0, 2.0, 3.0]
    others = query_index(index, feature, 7, leave_out=own)
    assert all(m.path != "long.mp4" or m.end <= 2 or m.start >= 4 for m in others)


def test_moments_that_cannot_be_read(tmp_path, long_video, model):
    (tmp_path / "a@1-2").touch()
    assert parse_query(str(tmp_path / "a@1-2")) == Query(str(tmp_path / "a@1-2"))
    assert parse_query("a.mp4@1:02:03.5-1:02:08") == Query("a.mp4", 3723.5, 3728.0)
    assert parse_query("me@host/a.mp4") == Query("me@host/a.mp4")
    with pytest.raises(ValueError, match="before its start"):
        parse_query("a.mp4@5-2")
    with pytest.raises(ValueError, match="not a time"):
        parse_query("a.mp4@x-2")
