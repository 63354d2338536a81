"""Problems by the facts about files and by the list."""

from __future__ import annotations

import pytest
from helpers import verification_fakes as fakes

from sce_video.data_tools.verify import CONTAINERS, Limits, file_problems, find_problems
from sce_video.datasets.video_list import VIDEO_EXTENSIONS, VideoList


def kinds(path, facts):
    return [kind for kind, _ in file_problems(path, facts, Limits())]


def test_every_video_extension_has_its_containers():
    assert set(VIDEO_EXTENSIONS) <= set(CONTAINERS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        # differences of two frames or a tenth are tolerated
        ({"header_frames": 102}, []),
        ({"header_frames": 110}, []),
        ({"header_frames": 120}, ["bad"]),
        ({"header_frames": 80}, ["header"]),
        ({"header_frames": 91}, []),
        ({"packets": 100, "frames": 95}, []),
        ({"packets": 130}, ["bad"]),
        ({"refused": 1}, ["bad"]),
        ({"damaged": 1}, ["bad"]),
        # if the frame count is right, a wrong duration is a problem of the header
        ({"header_seconds": 9.0}, ["header"]),
        ({"header_seconds": 2.0}, ["header"]),
        ({"header_seconds": 4.4}, []),
        # without a frame count, a video that ends early is truncated
        ({"header_frames": None, "header_seconds": 9.0}, ["bad"]),
        ({"header_frames": None, "header_seconds": 9.0, "header_of_file": True}, ["header"]),
        ({"header_frames": None, "header_seconds": 2.0}, ["header"]),
        ({"header_frames": None, "header_seconds": None}, []),
        ({"frames": 7, "packets": 7, "header_frames": 7}, ["short"]),
        ({"frames": 7, "container": "avi", "packets": 40}, ["bad", "short", "container"]),
        ({"container": "matroska,webm"}, ["container"]),
    ],
)
def test_problems_of_facts(changes, expected):
    assert kinds("x.mp4", {**fakes.GOOD, **changes}) == expected


@pytest.mark.parametrize("codec", ["vp8", "vp9", "libdav1d", "av1"])
def test_codecs_of_webm(codec):
    facts = {**fakes.GOOD, "container": "matroska,webm", "codec": codec}
    assert kinds("x.webm", facts) == [] and kinds("x.mkv", facts) == []


def make_list(entries):
    return VideoList.from_paths([path for path, _ in entries], [label for _, label in entries])


def test_duplicates_and_labels():
    videos = make_list([("a.mp4", 0), ("b.mp4", 2), ("./a.mp4", 0), ("b.mp4", 1), ("c.mp4", 3)])
    facts = {videos.path(i): fakes.GOOD for i in range(5)}
    problems = find_problems(videos, facts.__getitem__, lines=[1, 2, 4, 5, 6], num_classes=3)
    assert [(p.kind, p.path, p.line) for p in problems] == [
        ("duplicate", "./a.mp4", 4),
        ("duplicate", "b.mp4", 5),
        ("label", "c.mp4", 6),
    ]
    assert problems[0].detail == "same file as line 1"
    assert "line 2" in problems[1].detail and "label 2; here it is 1" in problems[1].detail
    assert "label 3 is out of range: labels are 0 to 2" in problems[2].detail
    assert len(find_problems(videos, facts.__getitem__)) == 2  # labels are not checked


def test_missing_labels():
    videos = make_list([("a.mp4", -1)])
    (problem,) = find_problems(videos, {"a.mp4": fakes.GOOD}.__getitem__, num_classes=3)
    assert problem.kind == "label" and "no label" in problem.detail


def test_a_bad_file_is_reported_once_however_often_it_is_listed():
    videos = make_list([("a.mp4", 0), ("a.mp4", 0)])
    bad = {"outcome": "unreadable", "error": "is empty (0 bytes)"}
    problems = find_problems(videos, {"a.mp4": bad}.__getitem__)
    assert [p.kind for p in problems] == ["bad", "duplicate"]
