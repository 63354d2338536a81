"""The gallery: its content, that it is self-contained, that hostile names are escaped."""

import base64
import io
import os
import re
import urllib.parse
from html.parser import HTMLParser

import av
import numpy as np
import pytest
from helpers.videos import numbered_frames, read_number, write_video

from sce_video.datasets import VideoDecodeError
from sce_video.pages.gallery import GalleryEntry, read_entry, read_frames, write_gallery
from sce_video.utils.command import printable_utf8


class Page(HTMLParser):
    """Collects tags and text; fails on tags that are not closed."""

    VOID = {"img", "meta"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip() and self.open[-1] != "style":
            self.texts.append(data.strip())

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """40 numbered frames, 1.6 s."""
    return write_video(tmp_path_factory.mktemp("videos") / "v.mp4", numbered_frames(40))


def entry(rank=1, **changes):
    frames = [np.full((60, 80, 3), 60 * i, np.uint8) for i in range(4)]
    values = dict(name="a.mp4", file="/videos/a.mp4", frames=frames, duration=1.5)
    return GalleryEntry(**{**values, "rank": rank, "similarity": 0.75, **changes})


def read_as(name, file, rank, similarity):
    return read_entry(GalleryEntry(name, str(file), rank=rank, similarity=similarity))


QUERY = entry(rank=None, similarity=None, name="q.mp4")


def test_the_middle_of_a_video_is_played(tmp_path):
    """25 frames per second, played at 8: of 5 s the seconds 1 to 4, of 1.6 s all."""
    for count, start, shown in ((125, 25, 24), (40, 0, 13)):
        path = write_video(tmp_path / f"{count}.mp4", numbered_frames(count))
        frames, played, duration = read_frames(path)
        assert [read_number(f) for f in frames] == [count * (2 * i + 1) // 8 for i in range(4)]
        assert duration == pytest.approx(count / 25)
        numbers = [read_number(frame) for frame in played]
        assert numbers == [start + int(i * 25 / 8 + 1e-6) for i in range(shown)]
    write_gallery(tmp_path / "g.html", [QUERY], [read_as("v.mp4", path, 1, 0.5)])
    (player,) = Page((tmp_path / "g.html").read_text()).all("video")
    assert set(player) == {"controls", "loop", "muted", "playsinline", "title", "src"}
    kind, _, data = player["src"].partition(",")
    assert kind == "data:video/mp4;base64"
    with av.open(io.BytesIO(base64.b64decode(data))) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.video[0].pix_fmt == "yuv420p"
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert [read_number(frame) for frame in decoded] == numbers


def test_missing_and_broken_files_are_shown_with_the_problem(tmp_path, video):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    missing = read_as("m.mp4", tmp_path / "m.mp4", 2, 0.5)
    broken = read_as("b.mp4", tmp_path / "broken.mp4", 3, 0.4)
    assert missing.problem == "the file is missing"
    assert "cannot be opened" in broken.problem
    assert missing.frames == broken.frames == []
    good = read_as("v.mp4", video, 1, 0.9)
    assert (good.problem, len(good.frames), good.rank, good.similarity) == ("", 4, 1, 0.9)
    with pytest.raises(VideoDecodeError):
        read_frames(tmp_path / "broken.mp4")

    write_gallery(tmp_path / "g.html", [QUERY], [good, missing, broken])
    text = (tmp_path / "g.html").read_text()
    # Nothing is loaded from elsewhere and nothing runs.
    assert not re.search(r"https?:|<script|<link|@import|url\(| on\w+=", text)
    page = Page(text)
    assert "the file is missing" in page.texts
    assert broken.problem in page.texts
    links = [urllib.parse.unquote(a["href"]) for a in page.all("a")]
    assert links[1:] == [f"./{os.path.relpath(video, tmp_path)}"]
    assert len(page.all("img")) == 8


EVIL = [
    "<script>alert(1)</script>.mp4",
    '"><img src=x onerror=alert(1)>.mp4',
    "a & b 'c'.mp4",
    "{style}.mp4",
    "javascript:alert(1).mp4",
    "50% #1?.mp4",
    b"not\xffutf8.mp4".decode("utf-8", "surrogateescape"),
    "\x1b[2Jleft\u202egpj.mp4",
]


@pytest.mark.parametrize("name", EVIL)
def test_hostile_names_are_shown_as_text(tmp_path, name):
    file = str(tmp_path / name.replace("/", "_"))
    bad = entry(rank=2, name=name, problem=f"cannot {name}", frames=[])
    write_gallery(
        tmp_path / "g.html", [entry(rank=None, name=name)], [entry(name=name, file=file), bad], name
    )
    page = Page((tmp_path / "g.html").read_text(encoding="utf-8"))
    shown = printable_utf8(name)
    assert page.texts.count(shown) >= 4
    assert f"cannot {shown}" in page.texts
    assert {tag for tag, _ in page.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "article"),
        *("div", "a", "span", "b", "img"),
    }
    assert all(set(attrs) == {"alt", "src"} for attrs in page.all("img"))
    link = page.all("a")[1]["href"]
    assert link.startswith("./")
    assert urllib.parse.unquote_to_bytes(link[2:]) == name.replace("/", "_").encode(
        "utf-8", "surrogateescape"
    )
