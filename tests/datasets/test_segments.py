"""Segments: paths, the CSV file, and readers of a stretch of a video."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import torch
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.datasets import VideoDataset, VideoDecodeError, open_video
from sce_video.datasets.labelled import read_labelled
from sce_video.datasets.segments import (
    Segment,
    check_segment_files,
    read_segments,
    segment_path,
    stated_duration,
    write_segment_file,
)
from sce_video.datasets.sources import is_elsewhere, video_exists
from sce_video.datasets.video_list import split_segment, video_of

FPS = 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """a.mp4 of 3 seconds, and its frames."""
    folder = tmp_path_factory.mktemp("segments")
    write_lossless(folder / "a.mp4", moving_frames(75, seed=4))
    return folder


def test_paths(folder, monkeypatch):
    assert segment_path("a.mp4", 1 / 3, 62.5) == "a.mp4@0.333333-62.5"
    assert split_segment("x/a.mp4@0.5-1:02.5") == ("x/a.mp4", 0.5, 62.5)
    for other in ("a.mp4", "a.mp4@2-1", "a.mp4@one-two", "me@home-2.mp4"):
        assert split_segment(other) is None and video_of(other) == other
    assert video_exists(folder / "a.mp4@1-2") and not video_exists(folder / "b.mp4@1-2")
    monkeypatch.chdir(folder)
    (folder / "a.mp4@1-2").write_bytes(b"a file of that name")
    assert split_segment("a.mp4@1-2") is None
    (folder / "a.mp4@1-2").unlink()


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.4), (0.5, 1.2), (1.01, 1.02), (2.6, 9.0)])
def test_a_segment_is_a_video_of_its_frames(folder, start, end):
    with open_video(str(folder / "a.mp4")) as whole:
        times = whole.timestamps
        frames = whole.read(np.arange(75))
    own = np.flatnonzero((times >= start - 1e-6) & (times < end - 1e-6))
    if not len(own):  # the frame that is shown then
        own = np.flatnonzero(times <= start + 1e-6)[-1:]
    with open_video(segment_path(str(folder / "a.mp4"), start, end)) as reader:
        np.testing.assert_allclose(reader.timestamps, times[own] - times[own[0]], atol=1e-12)
        assert reader.duration == pytest.approx(len(own) / FPS)
        assert (reader.height, reader.width) == frames.shape[1:3]
        every = np.arange(len(own))
        np.testing.assert_array_equal(reader.read(every), frames[own])
        streamed = [(n, part[i]) for ns, part in reader.stream(every) for i, n in enumerate(ns)]
        np.testing.assert_array_equal([n for n, _ in streamed], every)
        np.testing.assert_array_equal([frame for _, frame in streamed], frames[own])
        with pytest.raises(ValueError, match="has no frame"):
            reader.read(np.array([len(own)]))
    with pytest.raises(VideoDecodeError, match=r"ends at 3\.00 s, before the start"):
        open_video(segment_path(str(folder / "a.mp4"), 3.5, 4))


def test_the_file_is_read_as_it_was_written(tmp_path):
    found = [
        Segment("a b.mp4", 0.0, 1.25, "run, fast"),
        Segment('"c".mp4', 3.0, 1 / 3 + 3, "é", 0.75),
    ]
    write_segment_file(tmp_path / "s.csv", found)
    again = read_segments(str(tmp_path / "s.csv"))
    assert [(s.path, s.start, s.label, s.score) for s in again] == [
        (s.path, s.start, s.label, s.score) for s in found
    ]
    assert again[1].end == pytest.approx(found[1].end, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a.mp4,2,1,run", r"line 3: the segment ends at 1 s, before its start at 2 s"),
        ("a.mp4,1,9,run", r"line 3: the segment ends at 9 s, but .*a\.mp4 ends at 3\.00 s"),
        ("b.mp4,1,2,run", r"line 3: there is no video '.*b\.mp4'"),
        ("a.mp4,one,2,run", r"line 3: start is not a time: 'one'"),
        ("a.mp4,1,2,", r"line 3: the path or the label is missing"),
        ("a.mp4,1", r"line 3: the path or the label is missing"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(folder, tmp_path, row, message):
    (tmp_path / "s.csv").write_text(f"path,start,end,label\na.mp4,0,1,walk\n{row}\n")
    with pytest.raises(ValueError, match=rf"s\.csv, {message}"):
        read_labelled(str(tmp_path / "s.csv"), str(folder))


def test_a_row_is_a_sample(folder, tmp_path):
    """Also with equal times, of other labels, and with 0:01 for a second."""
    text = "path,start,end,label,score\na.mp4,0,1,walk,1\na.mp4,0:01,2,run,\na.mp4,0.5,1.5,run,0\n"
    (tmp_path / "s.csv").write_text(text)
    labelled = read_labelled(str(tmp_path / "s.csv"), str(folder))
    assert labelled.paths() == ["a.mp4@0-1", "a.mp4@1-2", "a.mp4@0.5-1.5"]
    assert labelled.videos.classes == ("run", "walk")
    assert labelled.videos.labels.tolist() == [1, 0, 0]
    steps = [
        {"type": "OpenVideo"},
        {"type": "UniformClips", "num_clips": 1, "num_frames": 4, "clip_duration": 1.0},
        {"type": "DecodeClips"},
        lambda results: {"inputs": [torch.as_tensor(np.asarray(v)) for v in results["views"]]},
    ]
    data = VideoDataset(**labelled.dataset(tmp_path, "train"), pipeline=steps)
    with open_video(str(folder / "a.mp4")) as whole:
        expected = whole.read(25 + np.array([0, 8, 16, 24]))
    np.testing.assert_array_equal(data[1]["inputs"][0], expected)


# -- a file of segments from elsewhere ------------------------------------------------------------


@pytest.fixture
def requests():
    """Address of a server on the loopback interface, and the paths that were requested of it."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}", paths
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_path_of_a_segment_causes_no_request(folder, requests, tmp_path, monkeypatch):
    """A local folder named ``http:`` makes the address look like an existing file."""
    address, asked = requests
    monkeypatch.chdir(tmp_path)
    path = f"http://{address}/x.mp4"
    (tmp_path / "http:" / address).mkdir(parents=True)
    (tmp_path / "http:" / address / "x.mp4").write_bytes((folder / "a.mp4").read_bytes())
    assert video_exists(path) and not is_elsewhere(path)
    check_segment_files([("s.csv, line 2", path, 2.5)])
    with pytest.raises(ValueError, match=r"s\.csv, line 3: the segment ends at 9 s"):
        check_segment_files([("s.csv, line 3", path, 9.0)])
    assert asked == []


@pytest.mark.parametrize("kind", ["concat", "playlist", "named pipe"])
def test_a_file_that_refers_to_others_states_no_duration(folder, requests, tmp_path, kind):
    address, asked = requests
    path = tmp_path / "x.mp4"
    if kind == "named pipe":  # opening one would wait for ever
        os.mkfifo(path)
    elif kind == "concat":
        path.write_text(f"ffconcat version 1.0\nfile {folder / 'a.mp4'}\n")
    else:
        path.write_text(f"#EXTM3U\n#EXTINF:3,\nhttp://{address}/a.ts\n#EXT-X-ENDLIST\n")
    assert stated_duration(str(path)) is None
    assert asked == []
