"""Only files are opened, whatever their names look like, and only containers of their own data."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers.videos import read_numbers

from sce_video.data_tools.repack.encode import Job, repack_file
from sce_video.data_tools.repack.plan import Settings
from sce_video.data_tools.verify import examine_file
from sce_video.datasets import VideoDecodeError, backend_importable, open_reader
from sce_video.datasets.readers.av_file import file_url, open_container
from sce_video.pages.frames import write_clip

PLAYLISTS = {
    "concat": "ffconcat version 1.0\nfile real.ts\n",
    "hls": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:3\n#EXT-X-MEDIA-SEQUENCE:0\n"
    "#EXTINF:2.0,\nreal.ts\n#EXT-X-ENDLIST\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
    "m=video 15004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    "text": "frame after frame of letters\n" * 40,
}
NAMES = ["cam:1/a.mp4", "http:x.mp4", "file:x.mp4", "concat:a|b.mp4", "a%03d.mp4", "-", "pipe:0"]


@pytest.fixture
def real(numbered_video, tmp_path, monkeypatch):
    """The current folder, with real.ts of 20 frames."""
    shutil.copy(numbered_video("real.ts", 20), tmp_path / "real.ts")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", PLAYLISTS)
@pytest.mark.parametrize("name", ["a.mp4", "b.m3u8"])
def test_playlists_are_no_videos(real, kind, name):
    (real / name).write_text(PLAYLISTS[kind])
    for backend in ("av", "decord"):
        if backend_importable(backend):
            with pytest.raises(VideoDecodeError, match="cannot be opened"):
                open_reader(name, backend)
    assert examine_file((name, 10.0))["outcome"] == "unreadable"
    done = repack_file(Job(name, "out.mp4", Settings(), 30.0))
    assert done["status"] == "failed" and done["kind"] == "bad"
    with pytest.raises(VideoDecodeError, match="cannot be opened"):
        open_container(name)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_look_like_protocols(numbered_video, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    shutil.copy(numbered_video("v.mp4", 20), tmp_path / name)
    for backend in ("av", "decord"):
        if backend_importable(backend):
            with open_reader(name, backend) as reader:
                assert getattr(reader, "uses_library", True)
                assert read_numbers(reader.read(np.array([3, 17]))) == [3, 17]
    assert examine_file((name, 10.0))["frames"] == 20


def test_outputs_may_have_such_names_too(numbered_video, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cam:1").mkdir()
    shutil.copy(numbered_video("v.mp4", 20), tmp_path / "cam:1" / "a.mp4")
    done = repack_file(Job("cam:1/a.mp4", "cam:1/out.mp4", Settings(psnr=30.0), 20.0))
    assert done["status"] == "done" and (tmp_path / "cam:1" / "out.mp4").is_file()
    write_clip("cam:1/clip.mp4", np.zeros((3, 32, 32, 3), dtype=np.uint8), 25.0)
    assert (tmp_path / "cam:1" / "clip.mp4").is_file()
    assert file_url("http:x.mp4") == "file:http:x.mp4"
