"""Verification: facts about files, their problems, runs that resume, and tables."""

from __future__ import annotations

import json
import os
import struct
import wave
from dataclasses import asdict, replace

import av
import numpy as np
import pytest
from helpers import verification_fakes as fakes
from helpers.videos import damaged_h264, decode_all, numbered_frames, remux, trim, write_video

from sce_video.data_tools import examination as module
from sce_video.data_tools.examination import FileFacts, examine_file
from sce_video.data_tools.listed_videos import listed_videos
from sce_video.data_tools.verify import (
    Problem,
    VerifyJob,
    file_problems,
    find_problems,
    verify_videos,
    write_table,
)
from sce_video.datasets import FrameCountError, open_reader
from sce_video.datasets.readers.base import VideoTimeoutError
from sce_video.datasets.video_list import VideoList
from sce_video.jobs import Item, Record, RecordStore, Workers, file_state, is_current
from sce_video.utils.records import read_record


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Good files of 40 frames, 1.6 s, in three containers; noise makes them large."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 80, 3), dtype=np.uint8)
    folder = tmp_path_factory.mktemp("videos")
    options = {"crf": "20", "g": "10", "bf": "0"}
    for name in ("a.mp4", "b.mkv", "c.avi"):
        codec = "mpeg4" if name.endswith("avi") else "libx264"
        write_video(folder / name, noise, codec=codec, options=options)
    return folder


def examine(path):
    return examine_file(str(path), 60.0)


def kinds(path, facts=None):
    return [kind for kind, _ in file_problems(str(path), facts or examine(path))]


@pytest.mark.parametrize(
    ("name", "container", "codec"),
    [("a.mp4", "mov", "h264"), ("b.mkv", "matroska", "h264"), ("c.avi", "avi", "mpeg4")],
)
def test_good_files(videos, name, container, codec):
    facts = examine(videos / name)
    assert (facts.outcome, facts.error) == ("decoded", None)
    video = facts.video
    assert (video.frames, video.packets, video.refused, video.damaged) == (40, 40, 0, 0)
    assert video.seconds == pytest.approx(1.6, abs=0.01)
    assert video.header_seconds == pytest.approx(1.6, abs=0.01)
    assert video.header_frames == (None if name == "b.mkv" else 40)
    assert video.container.split(",")[0] == container and video.codec == codec
    assert (video.height, video.width) == (64, 80)
    assert kinds(videos / name, facts) == []
    assert read_record(FileFacts, json.loads(json.dumps(asdict(facts)))) == facts


def test_files_that_cannot_be_opened(tmp_path, videos):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("<html>404 not found</html>\n" * 50)
    (tmp_path / "headless.mp4").write_bytes((videos / "a.mp4").read_bytes()[:20000])
    os.mkfifo(tmp_path / "pipe.mp4")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(b"\0\1" * 8000)
    (tmp_path / "a.wav").rename(tmp_path / "audio.mp4")
    for name, words in (
        ("empty.mp4", "empty"),
        ("text.mp4", "cannot be opened"),
        ("headless.mp4", "cannot be opened"),
        ("pipe.mp4", "not a regular file"),
        ("audio.mp4", "video"),
    ):
        facts = examine(tmp_path / name)
        assert facts.outcome == "unreadable" and words in facts.error, name
        assert kinds(name, facts) == ["bad"]


@pytest.mark.parametrize("name", ["b.mkv", "c.avi"])
def test_a_file_cut_in_half_is_truncated(tmp_path, videos, name):
    whole = (videos / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    facts = examine(tmp_path / name)
    assert facts.outcome == "decoded" and 5 < facts.video.frames < 35
    assert facts.video.seconds == pytest.approx(facts.video.frames / 25, abs=0.05)
    assert kinds(name, facts) == ["bad"]


def write_with_gaps(path, codec, options, count=150):
    """Every fourth frame is dropped: an AVI has an empty chunk in its place."""
    noise = np.random.default_rng(0).integers(0, 256, (count, 64, 80, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.height, stream.width, stream.pix_fmt = 64, 80, "yuv420p"
        for number, array in enumerate(noise):
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            frame.pts = number // 3 * 4 + number % 3
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    ("codec", "options"),
    [("mpeg4", {"g": "12"}), ("libx264", {"bf": "0"}), ("libx264", {"bf": "3"})],
)
def test_frames_dropped_from_an_avi_are_not_missing(tmp_path, codec, options):
    path = write_with_gaps(tmp_path / "a.avi", codec, options)
    facts = examine(path)
    assert (facts.video.frames, facts.video.hidden, facts.video.header_frames) == (150, 49, 150)
    assert kinds(path, facts) == []
    whole = path.read_bytes()
    for share in (0.5, 0.8):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert kinds(path) == ["bad"], share


def test_pictures_of_mpeg4_that_are_not_coded_are_not_missing(tmp_path):
    """An encoder that drops a frame may write a header that says so, here for each fourth one."""
    whole = write_video(tmp_path / "w.avi", numbered_frames(90), codec="mpeg4", options={"g": "30"})
    with av.open(str(whole)) as old, av.open(str(tmp_path / "a.avi"), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        given = [packet for packet in old.demux(video=0) if packet.size]
        for time in range(119):
            source = given[time // 4 * 3 + min(time % 4, 2)]
            # Start code, P picture, time in 25ths of a second, vop_coded = 0, stuffing.
            bits = int(f"0101{time % 25:05b}1001111", 2)
            skipped = bytes.fromhex("000001b6") + bits.to_bytes(2, "big")
            packet = av.Packet(skipped if time % 4 == 3 else bytes(source))
            packet.pts = packet.dts = time
            packet.time_base, packet.stream = source.time_base, stream
            packet.is_keyframe = source.is_keyframe and time % 4 != 3
            new.mux(packet)
    facts = examine(tmp_path / "a.avi")
    assert (facts.video.frames, facts.video.hidden, facts.video.packets) == (90, 29, 90)
    assert kinds("a.avi", facts) == []


@pytest.mark.parametrize("b_frames", [0, 2])
def test_frames_that_an_edit_list_hides_are_not_missing(tmp_path, b_frames):
    options = {"crf": "12", "g": "50", "bf": str(b_frames), "sc_threshold": "0"}
    whole = write_video(tmp_path / "w.mp4", numbered_frames(120), options=options)
    begun = trim(whole, tmp_path / "begun.mp4", 1.2)
    facts = examine(begun)
    assert (facts.video.frames, facts.video.hidden, facts.video.header_frames) == (90, 30, 90)
    assert len(decode_all(begun)) == 90 and kinds(begun, facts) == []
    # The edit list ends earlier: FFmpeg's index lists few of the frames behind, or none of them.
    for count in (30, 51):
        data = bytearray(whole.read_bytes())
        struct.pack_into(">I", data, data.index(b"elst") + 12, count * 1000 // 25)
        (tmp_path / "ended.mp4").write_bytes(data)
        facts = examine(tmp_path / "ended.mp4")
        assert (facts.video.frames, facts.video.hidden) == (count, 120 - count)
        assert facts.video.header_frames == count and kinds("ended.mp4", facts) == []


def test_a_trimmed_file_that_is_cut_off_is_truncated(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (60, 64, 80, 3), dtype=np.uint8)
    whole = write_video(tmp_path / "w.mp4", noise, options={"g": "30", "bf": "0"})
    trimmed = trim(whole, tmp_path / "t.mp4", 0.4)
    front = tmp_path / "front.mp4"
    data = bytearray(open(remux(trimmed, front, movflags="faststart"), "rb").read())
    front.write_bytes(data[: len(data) * 6 // 10])
    assert kinds(front)[0] == "bad"


def test_empty_samples_of_an_mp4_are_not_missing(tmp_path):
    """A sample without bytes repeats the frame before it; each fifth one is emptied."""
    path = write_video(tmp_path / "v.mp4", numbered_frames(50), options={"g": "1", "bf": "0"})
    with av.open(str(path)) as container:
        stored = [(e.pos, e.size) for e in container.streams.video[0].index_entries]
    data = bytearray(path.read_bytes())
    sizes = data.index(b"stsz") + 16
    for number in range(4, 50, 5):  # what was its data becomes the end of the sample before it
        struct.pack_into(">I", data, sizes + 4 * number, 0)
        struct.pack_into(
            ">I", data, sizes + 4 * (number - 1), sum(stored[number - 1 + i][1] for i in (0, 1))
        )
    path.write_bytes(data)
    facts = examine(path)
    assert facts.video.frames == 40 and facts.video.hidden == 10
    assert kinds(path, facts) == []


def test_damage_in_the_middle_costs_frames_up_to_the_next_key_frame(tmp_path, videos):
    """Part of the frames' data is zeroed: the decoder refuses packets or conceals errors."""
    data = bytearray((videos / "a.mp4").read_bytes())
    start = data.index(b"mdat") + 4
    middle = start + 2 * (data.index(b"moov") - start) // 3
    data[middle : middle + 20_000] = bytes(20_000)  # several packets, with their beginnings
    (tmp_path / "a.mp4").write_bytes(data)
    facts = examine(tmp_path / "a.mp4")
    assert facts.video.refused + facts.video.damaged > 0 or facts.video.frames < 39
    assert kinds("a.mp4", facts) == ["bad"]


@pytest.mark.parametrize(("packets", "kind"), [(0, []), (6, ["damaged"]), (7, ["bad"])])
def test_frames_with_concealed_errors(tmp_path, packets, kind):
    path, flagged = damaged_h264(tmp_path, packets)
    facts = examine(path)
    assert facts.video.damaged == flagged == packets and kinds(path, facts) == kind
    details = [detail for _, detail in file_problems(path, facts)]
    assert details == [f"{packets} of 60 frames are damaged"] * len(kind)


def test_usable_frames_are_those_that_the_reader_returns(shared_videos):
    """One packet is refused; plain decoding would continue with frames that lack references."""
    path = str(shared_videos / "formats" / "decord__corrupted.mp4")
    facts = examine(path)
    with open_reader(path) as reader, pytest.raises(FrameCountError) as caught:
        reader.read(np.arange(len(reader.timestamps)))
    assert facts.video.refused == 1
    assert facts.video.frames == len(caught.value.timestamps) < 40
    ((kind, detail),) = file_problems(path, facts)
    assert kind == "bad" and f"{facts.video.frames} of 50 frames are usable" in detail


def test_the_time_limit_holds_before_and_while_frames_are_decoded(videos, monkeypatch):
    facts, calls = examine_file(str(videos / "a.mp4"), 0.0), []
    assert facts.outcome == "timeout" and "0 s" in facts.error
    assert kinds("a.mp4", facts) == ["bad"]

    def strike(path, deadline):
        calls.append(deadline)
        if len(calls) == 20:
            raise VideoTimeoutError(path, "timed out while decoding")

    monkeypatch.setattr(module, "check_deadline", strike)
    assert examine(videos / "a.mp4").outcome == "timeout"
    assert len(calls) == 20


def test_unusual_real_files(shared_videos):
    """Problems, and frames as in the table of SOURCES.md."""
    for name, frames, expected in (
        ("decord__unordered.mov", 4, ["short"]),
        ("derived__truncated50_test.mp4", None, ["bad"]),
        ("derived__truncated50_test.avi", 77, ["bad"]),
        ("derived__wmv2.wmv", 100, []),
    ):
        facts = examine(shared_videos / "formats" / name)
        found = None if facts.video is None else facts.video.frames
        assert (found, kinds(name, facts)) == (frames, expected), name


# -- problems ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        # differences of two frames or a tenth are tolerated
        ({"header_frames": 102}, []),
        ({"header_frames": 120}, ["bad"]),
        ({"header_frames": 80}, ["header"]),
        ({"packets": 130}, ["bad"]),
        ({"refused": 1}, ["bad"]),
        # a few frames with concealed errors are named; with more than a tenth a file is bad
        ({"damaged": 1}, ["damaged"]),
        ({"damaged": 10}, ["damaged"]),
        ({"damaged": 11}, ["bad"]),
        # if the frame count is right, a wrong duration is a problem of the header
        ({"header_seconds": 9.0}, ["header"]),
        # without a frame count, a video that ends early is truncated
        ({"header_frames": None, "header_seconds": 9.0}, ["bad"]),
        ({"header_frames": None, "header_seconds": 9.0, "header_of_file": True}, ["header"]),
        ({"header_frames": None, "header_seconds": None}, []),
        ({"frames": 7, "container": "avi", "packets": 40}, ["bad", "short", "container"]),
        ({"container": "matroska,webm"}, ["container"]),
    ],
)
def test_problems_of_facts(changes, expected):
    assert kinds("x.mp4", fakes.decoded(**changes)) == expected


def test_containers_and_extensions():
    good = fakes.decoded()
    matroska = fakes.decoded(container="matroska,webm")  # webm cannot hold h264
    for name, facts in (("a.avi", good), ("a.AVI", good), ("b.webm", matroska)):
        ((kind, detail),) = file_problems(name, facts)
        assert kind == "container" and os.path.splitext(name)[1].lower() in detail
    for name, facts in (("a.MOV", good), ("b.mkv", matroska), ("c.part", matroska)):
        assert kinds(name, facts) == []


def make_list(entries):
    return VideoList.from_paths([path for path, _ in entries], [label for _, label in entries])


def test_duplicates_and_labels():
    videos = make_list([("a.mp4", 0), ("b.mp4", 2), ("./a.mp4", 0), ("b.mp4", 1), ("c.mp4", 3)])
    facts = {videos.path(i): fakes.decoded() for i in range(5)}
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


# -- runs -------------------------------------------------------------------------------------


def test_reading_lists_and_folders(tmp_path, videos, monkeypatch):
    listed = tmp_path / "sub" / "list.txt"
    listed.parent.mkdir()
    listed.write_text("\na.mp4 0\n\nb.mkv 1\n")
    found = listed_videos(str(listed), str(videos))
    assert (len(found.videos), found.root, found.lines) == (2, str(videos), [2, 4])
    with pytest.raises(ValueError, match=r"a\.mp4.*--data-root"):
        listed_videos(str(listed), None)
    monkeypatch.chdir(videos)  # the second choice, after the list's own folder
    assert listed_videos(str(listed), None).root == "."
    (listed.parent / "b.mkv").touch()
    assert listed_videos(str(listed), None).root == str(listed.parent)
    found = listed_videos(str(videos), None)
    assert (len(found.videos), found.root, found.lines) == (3, str(videos), None)
    with pytest.raises(ValueError, match="--data-root"):
        listed_videos(str(videos), str(videos))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        listed_videos(str(tmp_path / "nowhere.txt"), None)


@pytest.fixture
def folder(tmp_path):
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        (tmp_path / name).write_text(name)
    return tmp_path


def verify(folder, names, timeout=20.0, workers=0, **options):
    with RecordStore(
        folder / "records.sqlite", "verify", restart=options.pop("restart", False)
    ) as store:
        job = fakes.ByName(str(folder), timeout)
        facts = verify_videos(names, job, store, Workers(workers, timeout))
        return {name: facts(name) for name in names}


def calls(folder):
    log = folder / "calls.log"
    names = sorted(log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return names


def test_each_file_is_examined_once_and_never_again(folder):
    names = ["a.mp4", "b.mp4", "a.mp4", "gone.mp4"]
    facts = verify(folder, names)
    assert calls(folder) == ["a.mp4", "b.mp4"]
    assert {path: f.outcome for path, f in facts.items()} == {
        "a.mp4": "decoded", "b.mp4": "decoded", "gone.mp4": "missing",
    }  # fmt: skip
    again = verify(folder, [*names, "c.mp4"])
    assert calls(folder) == ["c.mp4"]
    assert again["a.mp4"] == facts["a.mp4"] and again["a.mp4"].video.frames == 100
    verify(folder, names, restart=True)
    assert calls(folder) == ["a.mp4", "b.mp4"]
    (folder / "gone.mp4").touch()
    assert verify(folder, names)["gone.mp4"].outcome == "decoded"


def test_crashes_are_named_and_tried_again(folder):
    for name in ("crash.mp4", "fail.mp4"):
        (folder / name).touch()
    names = ["a.mp4", "crash.mp4", "b.mp4", "fail.mp4", "c.mp4"]
    facts = verify(folder, names, workers=1)
    assert calls(folder) == ["a.mp4", "b.mp4", "c.mp4"]
    assert "SIGSEGV" in facts["crash.mp4"].error and "KeyError" in facts["fail.mp4"].error
    with RecordStore(folder / "records.sqlite", "verify") as store:
        items = [Item(name, file_state(folder / name)) for name in names]
        job = fakes.ByName(str(folder), 20.0)
        due = [item.key for item in items if not is_current(job, item, store)]
    assert due == ["crash.mp4", "fail.mp4"]


def test_records_of_another_form_do_not_hold():
    item, job = Item("a", {}), VerifyJob("/", 9.0)
    good = asdict(fakes.decoded())
    assert job.holds(item, Record("a", True, {}, {}, good))
    flat = {"outcome": "decoded", "error": None, **good["video"]}  # of an earlier version
    for facts in (flat, {}, {**good, "more": 1}, {**good, "video": {"frames": 3}}):
        assert not job.holds(item, Record("a", True, {}, {}, facts))


def test_timeouts_stand_up_to_their_limit_and_large_frames_to_theirs():
    item, record = Item("a", {}), Record("a", False, {}, {}, kind="timeout", time_limit=2.0)
    assert VerifyJob("/", 1.5).holds(item, record) and not VerifyJob("/", 3.0).holds(item, record)
    facts = FileFacts(outcome="unreadable", error="64 pixels, more than", max_pixels=60)
    record = Record("a", True, {}, {}, asdict(facts))
    assert VerifyJob("/", 9.0, 60).holds(item, record)
    assert not VerifyJob("/", 9.0, 64).holds(item, record)


# -- tables and summaries ---------------------------------------------------------------------


PROBLEMS = [
    Problem("bad", "x/a b.mp4", 3, "is empty (0 bytes)"),
    Problem("short", "tab\there|.mp4", None, "7 frames", replace(fakes.GOOD, frames=7)),
]


def test_tables(tmp_path):
    write_table(tmp_path / "t.tsv", PROBLEMS)
    rows = [line.split("\t") for line in (tmp_path / "t.tsv").read_text().splitlines()]
    assert rows == [
        ["problem", "path", "line", "detail", "frames", "seconds", "container", "codec"],
        ["bad", "x/a b.mp4", "3", "is empty (0 bytes)", "", "", "", ""],
        ["short", "tab\\there|.mp4", "", "7 frames", "7", "4.000", "mov", "h264"],
    ]
    write_table(tmp_path / "t.md", PROBLEMS)
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert len(lines) == 4 and "tab\\there\\|.mp4" in lines[3]
    write_table(tmp_path / "t.tsv", [])
    assert len((tmp_path / "t.tsv").read_text().splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["t.md", "t.tsv"]
