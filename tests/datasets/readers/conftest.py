"""Videos, and the paths to their frames, that the tests of readers share."""

from __future__ import annotations

import av
import pytest

from sce_video.datasets.readers import av_file as av_stream

av.logging.set_libav_level(av.logging.FATAL)
X264 = {"crf": "12", "g": "12", "bf": "3", "sc_threshold": "0"}
VIDEOS = {
    "b_frames.mp4": dict(options=X264),
    "b_frames.mov": dict(options=X264),
    "intra.mp4": dict(options={"crf": "12", "g": "1"}),
    "open_gop.mp4": dict(
        options={"x264-params": "open-gop=1:keyint=12:bframes=3:b-pyramid=normal:scenecut=0"}
    ),
    "pyramid.mkv": dict(options={"x264-params": "keyint=15:bframes=7:b-pyramid=normal"}),
    "p_frames.avi": dict(codec="mpeg4", options={"g": "10", "b": "2000k"}),
    "vp9.webm": dict(codec="libvpx-vp9", options={"g": "12", "deadline": "realtime"}),
}


@pytest.fixture(scope="session", params=VIDEOS)
def any_video(request, numbered_video):
    """50 numbered frames, in each of several containers and codecs."""
    return numbered_video(request.param, 50, **VIDEOS[request.param])


@pytest.fixture(scope="session")
def plain(numbered_video):
    """50 numbered frames at 25 fps in mp4, a key frame every 12, B frames between."""
    return numbered_video("b_frames.mp4", 50, options=X264)


@pytest.fixture(scope="session")
def video(numbered_video):
    """60 numbered frames at 25 fps in mp4, a key frame every 12, B frames between."""
    return numbered_video("b_frames.mp4", 60, options=X264)


@pytest.fixture(params=["indexed", "held", "streamed", "probed"])
def packets(request, monkeypatch):
    """All paths to the packets of a file.

    By its index, if it has one; from its packets, held in memory if the file is small or read again
    if it is large; and with FFmpeg's own probing of the first frames when the file is opened.
    """
    if request.param != "indexed":
        monkeypatch.setattr(av_stream, "table_from_index", lambda *_: None)
    if request.param == "streamed":
        monkeypatch.setattr(av_stream, "_MAX_HELD_BYTES", 0)
    if request.param == "probed":
        monkeypatch.setattr(av_stream, "can_be_quick", lambda _: False)
    return request.param
