"""Which files are repacked, their outputs, settings, and tables of segments."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from sce_video.data_tools.repack.plan import EncoderLimits, Settings, name_outputs, plan_segments
from sce_video.data_tools.repack.repack_job import repack_files
from sce_video.data_tools.repack.video_source import read_source
from sce_video.datasets import VideoDecodeError
from sce_video.options.prepare import RepackOptions
from tests.helpers.videos import (
    decode_all,
    numbered_frames,
    read_numbers,
    remux,
    trim,
    write_video,
)


def test_names_of_outputs():
    assert name_outputs(["a.avi", "a.mp4", "b.mkv", "c/d.e.mov", "f"]) == {
        "a.avi": "a.avi.mp4",
        "a.mp4": "a.mp4",
        "b.mkv": "b.mp4",
        "c/d.e.mov": "c/d.e.mp4",
        "f": "f.mp4",
    }
    with pytest.raises(ValueError, match=r"a\.avi\.mp4"):
        name_outputs(["a.avi", "a.mkv", "a.avi.mp4"])


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        ((480, 854), {}, (256, 456)),
        ((120, 160), {}, (120, 160)),
        ((120, 160), {"enlarge": True}, (256, 342)),
        ((255, 333), {}, (254, 332)),
        ((1, 1), {"short_side": None}, (2, 2)),
    ],
)
def test_sizes(size, options, expected):
    assert Settings(**options).target_size(*size) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enlarge": True, "short_side": None}, "^enlarge needs short_side"),
        ({"short_side": 255}, "^short_side must be an even number, got 255"),
        ({"tune": "psnr,fastdecode,ssim"}, "'psnr' and 'ssim' of tune exclude each other"),
        ({"tune": "best"}, "^tune must be some of psnr, .*, got 'best'"),
        ({"threads": 0}, "^threads must be at least 1, got 0"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        RepackOptions(source="V", destination="O", **options)


RATE = 25
SETTINGS = Settings(short_side=None, crf=18.0, preset="ultrafast")


def expected(start, end, count):
    """Numbers of the frames that begin in a segment, by a loop over all frames."""
    frames = [n for n in range(count) if start - 0.02 / RATE <= n / RATE < end - 0.02 / RATE]
    return frames or [max(n for n in range(count) if n / RATE <= start)]


@pytest.fixture(scope="module")
def long_video(tmp_path_factory):
    """120 numbered frames with a key frame every 30 and B frames between them."""
    path = tmp_path_factory.mktemp("segments") / "videos/long.mp4"
    options = {"g": "30", "bf": "2", "crf": "10"}
    return write_video(path, numbered_frames(120), fps=RATE, options=options)


@pytest.fixture(scope="module")
def shifted_video(long_video):
    """The same frames in a container whose time stamps do not begin at 0."""
    return remux(long_video, long_video.with_name("long.ts"))


def table(path, rows, header=("path", "start", "end", "output", "label")):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return str(path)


@pytest.mark.parametrize("name", ["long_video", "shifted_video"])
@pytest.mark.parametrize(("start", "end"), [(0, 0.4), (1.21, 1.99), (2.44, 2.45), (4.5, 5.1)])
def test_a_segment_has_the_frames_that_begin_in_it(request, name, start, end):
    path = request.getfixturevalue(name)
    source = read_source(str(path), SETTINGS, span=(start, end))
    shown = [source.held[number] for number in source.schedule.shown]
    luma = [np.repeat(frame[: source.preparation.size[0], :, None], 3, axis=2) for frame in shown]
    assert read_numbers(luma) == expected(start, end, 120)
    assert source.schedule.rate == RATE


@pytest.mark.parametrize(("start", "end"), [(0, 0.4), (1.21, 1.99)])
def test_a_segment_of_a_trimmed_video_has_its_frames(long_video, tmp_path, start, end):
    path = trim(long_video, tmp_path / "trimmed.mp4", 20 / float(RATE))
    source = read_source(path, SETTINGS, span=(start, end))
    shown = [source.held[number] for number in source.schedule.shown]
    luma = [np.repeat(frame[: source.preparation.size[0], :, None], 3, axis=2) for frame in shown]
    assert read_numbers(luma) == [20 + number for number in expected(start, end, 100)]


def test_a_segment_of_a_video_without_usable_timestamps_has_its_frames(tmp_path):
    """An AVI file has none of its B frames, so its frames are counted."""
    options = {"g": "20", "bf": "3"}
    path = write_video(tmp_path / "b.avi", numbered_frames(60), fps=RATE, options=options)
    source = read_source(str(path), SETTINGS, span=(0.4, 1.2))
    shown = [source.held[number] for number in source.schedule.shown]
    luma = [np.repeat(frame[: source.preparation.size[0], :, None], 3, axis=2) for frame in shown]
    assert read_numbers(luma) == list(range(10, 30))
    assert source.schedule.constant and source.schedule.rate == RATE


def test_a_segment_that_the_video_does_not_have(long_video):
    with pytest.raises(VideoDecodeError, match=r"long\.mp4.*ends 4\.800 s.*100 to 101 s"):
        read_source(str(long_video), SETTINGS, span=(100.0, 101.0))


def test_a_table_becomes_files_a_list_and_records(long_video, tmp_path, in_process):
    rows = [
        ("long.mp4", 0, 0.4, "a/first.mp4", 3),
        ("long.mp4", 1.2, 2.0, "second.mp4", 0),
        ("long.mp4", 4.0, 9.0, "late.mp4", 1),
        ("gone\tfile.mp4", 0, 1, "gone.mp4", 1),
    ]
    source = table(tmp_path / "segments.csv", rows)
    out = tmp_path / "out"
    plan = plan_segments(source, str(long_video.parent))
    report, _ = repack_files(plan, str(out), SETTINGS, EncoderLimits())
    assert (report.done, report.failed) == (2, 2)
    assert read_numbers(decode_all(out / "a/first.mp4")) == expected(0, 0.4, 120)
    assert read_numbers(decode_all(out / "second.mp4")) == expected(1.2, 2.0, 120)
    assert (out / "segments.txt").read_text() == "a/first.mp4 3\nsecond.mp4 0\n"
    failed = (out / "segments.failed.txt").read_text()
    assert "long.mp4@4.000-9.000\t" in failed and "ends 4.800 s" in failed
    assert "gone\\tfile.mp4@0.000-1.000\t" in failed
    written = (out / "second.mp4").stat().st_mtime_ns
    again, _ = repack_files(plan, str(out), SETTINGS, EncoderLimits())
    assert again.done_before == 2
    assert (out / "second.mp4").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("v.mp4", "x", 1, "b.mp4", 0), "line 3: start is not a time: 'x'"),
        (("v.mp4", 2, 1, "b.mp4", 0), "line 3: the segment ends at 1 s, before its start at 2 s"),
        (("", 0, 1, "b.mp4", 0), "line 3: the column 'path' is empty"),
        (("v.mp4", 0, 1, "../b.mp4", 0), "line 3: output '../b.mp4' must be a path below"),
        (("v.mp4", 0, 2, "b.mp4", 0), r"line 3: v\.mp4@0\.000-2\.000 is listed twice"),
        (("v.mp4", 0, 1, "b.mp4", "walk"), "line 3: label 'walk' must be a whole number"),
        (("../v.mp4", 0, 1, "b.mp4", 0), "outside"),
    ],
)
def test_bad_rows(tmp_path, row, message):
    source = table(tmp_path / "s.csv", [("v.mp4", 0, 2, "a.mp4", 1), row])
    with pytest.raises(ValueError, match=message):
        plan_segments(source)


def test_tables_without_columns_or_rows(tmp_path):
    with pytest.raises(
        ValueError, match="the column 'end' is missing. The header must be path,start,end"
    ):
        plan_segments(table(tmp_path / "s.csv", [], ("path", "start", "output")))
    with pytest.raises(ValueError, match="lists no segments"):
        plan_segments(table(tmp_path / "s.csv", []))
