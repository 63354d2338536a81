"""``sce-video repack`` on generated data sets."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.repack_fakes import by_name
from helpers.stores import count_records
from helpers.videos import numbered_frames, read_number, write_video

from sce_video.commands import repack as tool
from sce_video.data_tools.repack.plan import RepackOptions, Settings, make_plan
from sce_video.data_tools.repack.report import describe_repack
from sce_video.data_tools.repack.run import repack
from sce_video.datasets import read_annotation_list, scan_folder
from sce_video.jobs import RecordStore, StorageError, process_pool
from sce_video.jobs.local import attempt_path
from sce_video.jobs.runner import UnfinishedOutputs

FAST = ["--preset", "ultrafast", "--crf", "25", "--workers", "1", "--min-psnr", "20"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A prepared data set: five videos of two classes, one of them listed twice."""
    root = tmp_path_factory.mktemp("original") / "data"
    names = ["One/a b.avi", "One/c.avi", "One/c.mp4", "Two/d.avi", "Two/e.webm"]
    for number, name in enumerate(names):
        codec = "libvpx" if name.endswith("webm") else "mpeg4"
        write_video(root / name, numbered_frames(10 + number), codec=codec, options={"b": "1M"})
    lines = [f"{name} {int(name.startswith('Two'))}\n" for name in [*reversed(names), names[0]]]
    (root / "list.txt").write_text("".join(lines))
    return root


@pytest.fixture
def data(original, tmp_path):
    """A copy of the data set."""
    return Path(shutil.copytree(original, tmp_path / "data"))


def outputs(folder):
    """All visible files below a folder."""
    return sorted(
        str(path.relative_to(folder)) for path in Path(folder).rglob("*.mp4") if path.name[0] != "."
    )


def hidden(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file() and path.name[0] == "."]


ALL = ["One/a b.mp4", "One/c.avi.mp4", "One/c.mp4", "Two/d.mp4", "Two/e.mp4"]


def numbers(path):
    with av.open(str(path)) as container:
        return [read_number(f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]


def test_a_folder(data, tmp_path, capsys):
    assert tool.main([str(data), str(tmp_path / "out"), *FAST]) == 0
    out = capsys.readouterr()
    assert outputs(tmp_path / "out") == ALL and hidden(tmp_path / "out") == []
    assert "5 files: 5 done, 0 failed" in out.out and "files/s" in out.err and "PSNR" in out.out
    for number, name in enumerate(ALL):
        assert numbers(tmp_path / "out" / name) == list(range(10 + number))
    report = json.loads((tmp_path / "out/repack.json").read_text())
    assert (report["done"], report["failed"], report["failures"]) == (5, 0, [])
    assert report["bytes"]["source"] == sum(
        path.stat().st_size for path in data.rglob("*") if path.suffix in (".avi", ".mp4", ".webm")
    )
    sizes = [(tmp_path / "out" / name).stat().st_size for name in ALL]
    assert report["bytes"]["output"] == sum(sizes)
    assert report["psnr"]["worst"] <= report["psnr"]["mean"] and report["psnr"]["worst_path"]
    classes = scan_folder(str(tmp_path / "out")).classes
    assert classes == ("One", "Two")


def test_a_list_with_failures(data, tmp_path, capsys):
    (data / "Two/d.avi").write_bytes(b"no video at all")
    (data / "Two/e.webm").unlink()
    assert tool.main([str(data / "list.txt"), str(tmp_path / "out"), *FAST]) == 1
    out = capsys.readouterr().out
    assert "5 files: 3 done, 2 failed" in out and "Two/d.avi: cannot be opened" in out
    made = read_annotation_list(str(tmp_path / "out/list.txt"))
    paths = [made.path(index) for index in range(len(made))]
    assert paths == ["One/c.mp4", "One/c.avi.mp4", "One/a b.mp4", "One/a b.mp4"]
    assert made.labels.tolist() == [0, 0, 0, 0]
    failed = (tmp_path / "out/list.failed.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in failed] == ["Two/d.avi", "Two/e.webm"]
    report = json.loads((tmp_path / "out/list.repack.json").read_text())
    assert [failure["kind"] for failure in report["failures"]] == ["bad", "missing"]
    assert outputs(tmp_path / "out") == ALL[:3]
    # the file exists again: only it and the other failure are tried again
    write_video(data / "Two/e.webm", numbered_frames(10), codec="libvpx")
    assert tool.main([str(data / "list.txt"), str(tmp_path / "out"), *FAST]) == 1
    assert "2 of 5 files to do" in capsys.readouterr().err
    made = read_annotation_list(str(tmp_path / "out/list.txt"))
    assert (made.path(0), made.labels.tolist()) == ("Two/e.mp4", [1, 0, 0, 0, 0])


def times(folder):
    return {name: (folder / name).stat().st_mtime_ns for name in outputs(folder)}


def test_finished_files_are_not_repacked_again(data, tmp_path, capsys):
    out = tmp_path / "out"
    command = [str(data), str(out), *FAST]
    assert tool.main(command) == 0
    first = times(out)
    report = json.loads((out / "repack.json").read_text())
    assert tool.main(command) == 0
    assert times(out) == first and "0 of 5 files to do" in capsys.readouterr().err
    again = json.loads((out / "repack.json").read_text())
    assert again["psnr"] == report["psnr"] and again["bytes"] == report["bytes"]
    os.utime(data / "One/c.avi", ns=(1, 1))  # a changed source
    (out / "Two/d.mp4").write_bytes(b"cut")  # a damaged output
    (out / "Two/e.mp4").unlink()
    assert tool.main(command) == 0
    changed = {name for name, when in times(out).items() if when != first[name]}
    assert changed == {"One/c.avi.mp4", "Two/d.mp4", "Two/e.mp4"}
    assert numbers(out / "Two/d.mp4") == list(range(13))
    second = times(out)
    assert tool.main([*command, "--force"]) == 0
    assert all(times(out)[name] != second[name] for name in ALL)


def test_other_settings_repack_all_again_and_other_limits_none(data, tmp_path, capsys):
    noise = np.random.default_rng(0).integers(0, 256, (5, 64, 80, 3), dtype=np.uint8)
    write_video(data / "Two/d.avi", noise, codec="mpeg4", options={"qscale": "2"})
    command = [str(data), str(tmp_path / "out"), *FAST]
    assert tool.main(command) == 0
    capsys.readouterr()
    assert tool.main([*command, "--threads", "2", "--timeout", "99", "--min-psnr", "21"]) == 0
    assert "0 of 5 files to do" in capsys.readouterr().err
    assert tool.main([*command, "--keyint", "3"]) == 0
    assert "5 of 5 files to do" in capsys.readouterr().err
    # an output that is no longer good enough is removed
    assert tool.main([*command, "--keyint", "3", "--min-psnr", "90"]) == 1
    assert "Two/d.mp4" not in outputs(tmp_path / "out")
    report = json.loads((tmp_path / "out/repack.json").read_text())
    assert [(f["path"], f["kind"]) for f in report["failures"]] == [("Two/d.avi", "quality")]


@pytest.fixture
def odd(tmp_path):
    """A file that crashes, one that hangs, and two good ones."""
    root = tmp_path / "odd"
    for name in ("a", "crash", "hang", "z"):
        write_video(root / f"{name}.mp4", numbered_frames(4), codec="mpeg4")
    return root


def run(root, out, on_progress=None, **options):
    settings = Settings(preset="ultrafast", crf=25)
    options = RepackOptions(min_psnr=20, **options)
    plan = make_plan(str(root), str(out))
    return repack(plan, str(out), settings, options, on_progress=on_progress, work=by_name)[0]


def test_a_crash_and_a_hang_affect_their_files_only(odd, tmp_path, monkeypatch):
    monkeypatch.setattr(process_pool, "_GRACE", 0.2)
    report = run(odd, tmp_path / "out", timeout=4.0, workers=2)
    kinds = {f["path"]: f["kind"] for f in report["failures"]}
    assert kinds == {"crash.mp4": "crash", "hang.mp4": "timeout"} and report["failed"] == 2
    assert "SIGSEGV" in report["failures"][0]["reason"]
    assert outputs(tmp_path / "out") == ["a.mp4", "z.mp4"] and hidden(tmp_path / "out") == []


def test_a_full_disk_stops_the_run_and_fails_no_video(odd, tmp_path):
    for name in ("crash", "hang"):
        (odd / f"{name}.mp4").unlink()
    write_video(odd / "full.mp4", numbered_frames(4), codec="mpeg4")
    with pytest.raises(StorageError, match="the disk is full"):
        run(odd, tmp_path / "out", workers=1)  # one file after the other
    assert outputs(tmp_path / "out") == ["a.mp4"] and hidden(tmp_path / "out") == []
    with RecordStore(tmp_path / "out/.repack/records.sqlite", "repack") as store:
        assert [(record.key, record.done) for record in store] == [("a.mp4", True)]
    (odd / "full.mp4").rename(odd / "y.mp4")  # stands for a disk that is no longer full
    (odd / "calls.log").unlink()
    assert run(odd, tmp_path / "out")["done"] == 3
    assert (odd / "calls.log").read_text().split() == ["y.mp4", "z.mp4"]


def test_an_output_is_renamed_not_copied(odd, tmp_path):
    """A copy could be cut off, and would change the old output under its readers."""
    for name in ("crash", "hang"):
        (odd / f"{name}.mp4").unlink()
    run(odd, tmp_path / "out", workers=1)
    old = (tmp_path / "out/a.mp4").read_bytes()
    os.link(tmp_path / "out/a.mp4", tmp_path / "link")
    (odd / "inodes.log").unlink()
    write_video(odd / "a.mp4", numbered_frames(6), codec="mpeg4")
    run(odd, tmp_path / "out", workers=1, force=True)
    written = dict(line.split() for line in (odd / "inodes.log").read_text().splitlines())
    assert (tmp_path / "out/a.mp4").read_bytes() != old == (tmp_path / "link").read_bytes()
    for name, inode in written.items():
        assert (tmp_path / "out" / name).stat().st_ino == int(inode)


def records_of(out):
    """The records of a run, which has its lock until they are closed."""
    return RecordStore(out / ".repack/records.sqlite", "repack")


def unfinished(out, output, store):
    path = Path(attempt_path(UnfinishedOutputs(store.id).prepare(out / output)))
    path.write_bytes(b"half")
    return path


def test_temporary_files_of_a_killed_run_are_removed_and_others_are_not(data, tmp_path):
    out = tmp_path / "out"
    with records_of(out) as own, records_of(tmp_path / "elsewhere") as of_others:
        left, other = unfinished(out, "Two/d.mp4", own), unfinished(out, "Two/d.mp4", of_others)
    foreign = out / "Two/.d.mp4.mine"
    foreign.write_bytes(b"half")
    assert left.name.startswith(".") and len(left.name) < 80
    assert tool.main([str(data), str(out), *FAST]) == 0
    assert set(hidden(out)) == {other, foreign} and not left.exists()


def test_other_files_are_not_overwritten(data, tmp_path, capsys):
    out = tmp_path / "out"
    theirs = write_video(out / "One/c.mp4", numbered_frames(3), codec="mpeg4").read_bytes()
    assert tool.main([str(data), str(out), *FAST]) == 2
    assert "One/c.mp4" in capsys.readouterr().err
    assert (out / "One/c.mp4").read_bytes() == theirs and outputs(out) == ["One/c.mp4"]
    assert tool.main([str(data), str(out), *FAST, "--force"]) == 0
    # an output of repack whose record is lost is repacked again
    (out / ".repack/records.sqlite").unlink()
    assert tool.main([str(data), str(out), *FAST]) == 0


def test_two_lists_share_a_folder_but_no_output(data, tmp_path, capsys):
    (data / "train.txt").write_text("One/c.avi 0\n")
    (data / "val.txt").write_text("Two/d.avi 1\nOne/c.avi 0\n")
    (data / "test.txt").write_text("One/c.mp4 0\n")
    out = tmp_path / "out"
    assert tool.main([str(data / "train.txt"), str(out), *FAST]) == 0
    assert tool.main([str(data / "val.txt"), str(out), *FAST]) == 0
    assert "1 of 2 files to do" in capsys.readouterr().err  # known from the other list
    assert tool.main([str(data / "test.txt"), str(out), *FAST]) == 2
    err = capsys.readouterr().err
    assert "One/c.avi" in err and "One/c.mp4" in err
    assert (out / "train.txt").read_text() == "One/c.mp4 0\n"
    assert (out / "val.txt").read_text() == "Two/d.mp4 1\nOne/c.mp4 0\n"


def test_one_run_at_a_time_writes_to_a_folder(data, tmp_path, capsys):
    out = tmp_path / "out"
    command = [str(data / "list.txt"), str(out), *FAST]
    with records_of(out) as theirs:
        left = unfinished(out, "One/c.mp4", theirs)
        assert tool.main(command) == 2
        assert "another run is writing" in capsys.readouterr().err
        assert left.exists() and outputs(out) == []
    assert tool.main(command) == 0
    assert outputs(out) == ALL and hidden(out) == []


def test_the_list_itself_is_never_overwritten(data, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    text = (data / "list.txt").read_text()
    (data / "list.txt").rename(out / "list.txt")
    command = [str(out / "list.txt"), str(out), *FAST, "--data-root", str(data), "--force"]
    assert tool.main(command) == 2
    assert "list.txt" in capsys.readouterr().err
    assert (out / "list.txt").read_text() == text and outputs(out) == []


@pytest.mark.parametrize("name", ["list.txt", "list.failed.txt", "list.repack.json"])
def test_other_lists_and_reports_are_not_overwritten(data, tmp_path, capsys, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text('{"mine": 1}')
    command = [str(data / "list.txt"), str(out), *FAST]
    assert tool.main(command) == 2
    err = capsys.readouterr().err
    assert name in err and "repack did not make it" in err
    assert os.listdir(out) == [name] and (out / name).read_text() == '{"mine": 1}'
    assert tool.main([*command, "--force"]) == 0
    assert "failed" not in name or not (out / name).exists()
    assert tool.main(command) == 0


def test_another_list_of_the_same_name_is_refused(data, tmp_path, capsys):
    for folder, line in (("p", "One/c.avi 0"), ("q", "Two/d.avi 1"), ("same", "One/c.avi 0")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.txt").write_text(f"{line}\n")
    out = tmp_path / "out"
    rest = [str(out), *FAST, "--data-root", str(data)]
    assert tool.main([str(tmp_path / "p/train.txt"), *rest]) == 0
    assert tool.main([str(tmp_path / "q/train.txt"), *rest]) == 2
    err = capsys.readouterr().err
    assert "p/train.txt" in err and "q/train.txt" in err
    assert (out / "train.txt").read_text() == "One/c.mp4 0\n"
    assert tool.main([str(tmp_path / "same/train.txt"), *rest]) == 0  # under another mount point
    with open(tmp_path / "same/train.txt", "a") as file:
        file.write("Two/d.avi 1\n")
    assert tool.main([str(tmp_path / "same/train.txt"), *rest]) == 0  # the same path, more entries


def test_a_video_put_at_the_path_of_a_failed_output_stays(data, tmp_path, capsys):
    out = tmp_path / "out"
    (data / "Two/d.avi").write_bytes(b"no video at all")
    assert tool.main([str(data), str(out), *FAST]) == 1
    theirs = write_video(out / "Two/d.mp4", numbered_frames(3), codec="mpeg4").read_bytes()
    assert tool.main([str(data), str(out), *FAST]) == 2
    assert "Two/d.mp4 exists and repack did not make it" in capsys.readouterr().err
    assert tool.main([str(data), str(out), *FAST, "--force"]) == 1  # nothing to replace it with
    assert (out / "Two/d.mp4").read_bytes() == theirs


def test_two_roots_with_equal_paths_do_not_mix(tmp_path, capsys):
    for name, count in (("train", 5), ("val", 9)):
        write_video(tmp_path / name / "c/1.mp4", numbered_frames(count), codec="mpeg4")
    out = tmp_path / "out"
    assert tool.main([str(tmp_path / "train"), str(out), *FAST]) == 0
    assert tool.main([str(tmp_path / "val"), str(out), *FAST]) == 2
    err = capsys.readouterr().err
    assert str(tmp_path / "train") in err and str(tmp_path / "val") in err
    assert numbers(out / "c/1.mp4") == list(range(5))
    shutil.copytree(tmp_path / "train", tmp_path / "mounted")  # keeps the modification time
    assert tool.main([str(tmp_path / "mounted"), str(out), *FAST]) == 0
    assert "0 of 1 files to do" in capsys.readouterr().err
    assert tool.main([str(tmp_path / "val"), str(out), *FAST, "--force"]) == 0
    assert numbers(out / "c/1.mp4") == list(range(9))


def test_names_of_maximum_length(tmp_path):
    names = ["a" * 251, "b" * 252, "c" * 249]
    for name, ending in zip(names, (".mp4", ".ts", ".webm"), strict=True):
        codec = "libvpx" if ending == ".webm" else "mpeg4"
        short = write_video(tmp_path / f"in{ending}", numbered_frames(4), codec=codec)
        (tmp_path / "long").mkdir(exist_ok=True)
        short.rename(tmp_path / "long" / f"{name}{ending}")
    out = tmp_path / "out"
    assert tool.main([str(tmp_path / "long"), str(out), *FAST]) == 1
    assert outputs(out) == [f"{names[0]}.mp4", f"{names[2]}.mp4"] and hidden(out) == []
    failures = json.loads((out / "repack.json").read_text())["failures"]
    assert [(f["path"][0], f["kind"]) for f in failures] == [("b", "name")]


def test_files_whose_sources_are_away_stay_done(data, tmp_path, capsys):
    out = tmp_path / "out"
    command = [str(data / "list.txt"), str(out), *FAST]
    assert tool.main(command) == 0
    first, text = times(out), (out / "list.txt").read_text()
    (data / "Two").rename(tmp_path / "away")
    capsys.readouterr()
    assert tool.main(command) == 0
    said = capsys.readouterr().out
    assert "5 done, 0 failed" in said and "2 of the done whose source does not exist" in said
    assert times(out) == first and (out / "list.txt").read_text() == text
    assert tool.main([*command, "--force"]) == 0
    assert {name for name, when in times(out).items() if when == first[name]} == set(ALL[3:])
    # with other settings they fail; the outputs stay
    assert tool.main([*command, "--keyint", "2"]) == 1
    assert outputs(out) == ALL
    (tmp_path / "away").rename(data / "Two")
    capsys.readouterr()
    assert tool.main([*command, "--keyint", "2"]) == 0
    assert "2 of 5 files to do" in capsys.readouterr().err


def test_a_source_that_vanishes_while_all_are_repacked_again(odd, tmp_path):
    for name in ("crash", "hang"):
        (odd / f"{name}.mp4").unlink()
    assert run(odd, tmp_path / "out")["done"] == 2
    first = times(tmp_path / "out")

    def disk_goes(done, *_):
        if done == 1:
            odd.rename(tmp_path / "away")
            odd.mkdir()  # for the log

    report = run(odd, tmp_path / "out", disk_goes, force=True)
    assert (report["failed"], report["done"], report["away"]) == (0, 2, 1)
    now = times(tmp_path / "out")
    assert now["a.mp4"] != first["a.mp4"] and now["z.mp4"] == first["z.mp4"]


def test_an_output_never_overwrites_a_source(tmp_path, capsys):
    root = tmp_path / "data"
    for name in ("a.mp4", "x/a.mp4"):
        write_video(root / name, numbered_frames(4), codec="mpeg4")
    (root / "list.txt").write_text("a.mp4 0\nx/a.mp4 1\n")
    content = (root / "x/a.mp4").read_bytes()
    for more in ([], ["--force"]):
        assert tool.main([str(root / "list.txt"), str(root / "x"), *FAST, *more]) == 2
        assert "which is a source" in capsys.readouterr().err
    # the same through a symbolic link among the sources
    (tmp_path / "out").mkdir()
    (root / "a.mp4").rename(tmp_path / "out/b.mp4")
    (root / "b.mp4").symlink_to(tmp_path / "out/b.mp4")
    (root / "list.txt").write_text("b.mp4 0\n")
    assert tool.main([str(root / "list.txt"), str(tmp_path / "out"), *FAST, "--force"]) == 2
    assert "which is a source" in capsys.readouterr().err
    assert (root / "x/a.mp4").read_bytes() == content and outputs(tmp_path / "out") == ["b.mp4"]


def test_frames_that_are_never_shown_are_reported(tmp_path, capsys):
    stamps = [round(1000 * number / 30) for number in range(30)] + [9960]
    write_video(tmp_path / "in/a.mkv", numbered_frames(31), pts=stamps)
    out = tmp_path / "out"
    assert tool.main([str(tmp_path / "in"), str(out), *FAST]) == 0
    number = json.loads((out / "repack.json").read_text())["frames_not_shown"]
    words = f"1 of variable frame rate, now constant; {number} of their frames are never shown"
    assert 0 < number <= 6 and words in capsys.readouterr().out
    report = json.loads((out / "repack.json").read_text())
    assert "never shown" not in describe_repack({**report, "frames_not_shown": 0})


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_path_that_is_not_utf8_is_printed(data, tmp_path, monkeypatch, encoding):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert tool.main([str(data), os.fsdecode(os.fsencode(tmp_path) + b"/out\xff"), *FAST]) == 0
    stdout.flush()
    text = stdout.buffer.getvalue()
    assert b"out?" in text and b"repack.json" in text


def test_an_output_cannot_have_the_name_of_a_folder(tmp_path, capsys):
    for name in ("in/v.avi", "in/v.mp4/x.avi"):
        write_video(tmp_path / name, numbered_frames(4), codec="mpeg4")
    assert tool.main([str(tmp_path / "in"), str(tmp_path / "out"), *FAST]) == 2
    err = capsys.readouterr().err
    assert "'v.avi'" in err and "'v.mp4'" in err and not (tmp_path / "out").exists()
    (tmp_path / "in/v.mp4").rename(tmp_path / "in/w")
    (tmp_path / "out/v.mp4").mkdir(parents=True)
    assert tool.main([str(tmp_path / "in"), str(tmp_path / "out"), *FAST, "--force"]) == 2
    assert "is a folder" in capsys.readouterr().err
    (tmp_path / "list.mp4").write_text("in/v.avi 0\n")
    (tmp_path / "in").rename(tmp_path / "list.mp4.in")
    (tmp_path / "list.mp4").write_text("list.avi 0\n")
    (tmp_path / "list.mp4.in/v.avi").rename(tmp_path / "list.avi")
    assert tool.main([str(tmp_path / "list.mp4"), str(tmp_path / "o"), *FAST]) == 2
    assert "'list.mp4' and an output have the same name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "0"], "workers"),
        (["--threads", "0"], "threads"),
        (["--timeout", "0"], "timeout"),
        (["--min-psnr", "-1"], "min_psnr"),
        (["--short-side", "255"], "255"),
        (["--short-side", "big"], "big"),
        (["--short-side", "none", "--enlarge"], "enlarge"),
        (["--keyint", "0"], "keyint"),
        (["--crf", "60"], "60"),
        (["--crf", "good"], "good"),
        (["--psnr", "nan"], "nan"),
        (["--preset", "quick"], "quick"),
        (["--tune", "speed"], "speed"),
        (["--tune", "psnr,fastdecode,ssim"], "'psnr' and 'ssim' exclude each other"),
        (["--timeout", "inf"], "timeout"),
        (["--data-root", "x"], "--data-root"),
        (["--extensions", "ogv"], "no video"),
    ],
)
def test_wrong_usage(data, tmp_path, capsys, options, words):
    assert tool.main([str(data), str(tmp_path / "out"), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith("repack.py: error: ") and words in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_wrong_paths(data, tmp_path, capsys):
    for source, destination in (
        (data, data),
        (data, data / "One"),
        (data / "One", data),
        (data / "list.txt", data),
        (data / "list.txt", data / "list.txt"),
        (data / "no.txt", tmp_path / "out"),
    ):
        assert tool.main([str(source), str(destination), *FAST]) == 2
        assert capsys.readouterr().err.startswith("repack.py: error: ")
    (data / "outside.txt").write_text("../elsewhere.mp4 0\nOne/c.avi 0\n")
    assert tool.main([str(data / "outside.txt"), str(tmp_path / "out"), *FAST]) == 2
    assert "outside" in capsys.readouterr().err
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked/One").touch()  # a file where a folder must be
    assert tool.main([str(data), str(tmp_path / "blocked"), *FAST]) == 2
    assert "cannot make a folder" in capsys.readouterr().err
    assert outputs(data) == ["One/c.mp4"]


def run_until(command, folder, count):
    """Start the command and return its process once the folder holds some outputs."""
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Shells start background jobs, and so perhaps pytest, with interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    limit = time.monotonic() + 240
    while len(outputs(folder)) < count:
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.01)
    return process


@pytest.mark.slow
def test_killed_and_interrupted_runs_leave_no_partial_file_and_are_resumed(repo, tmp_path, capsys):
    """The one test of the tool as a command: signals need a process."""
    frames = np.random.default_rng(0).integers(0, 256, (12, 96, 128, 3), dtype=np.uint8)
    first = write_video(tmp_path / "videos/00.mp4", frames, options={"preset": "ultrafast"})
    for number in range(1, 30):
        os.link(first, tmp_path / f"videos/{number:02}.mp4")
    out = tmp_path / "out"
    arguments = [str(tmp_path / "videos"), str(out), "--crf", "30", "--min-psnr", "0"]
    arguments += ["--workers", "1"]
    command = [sys.executable, "-m", "sce_video", "repack", *arguments]
    process = run_until(command, out, 4)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = times(out)
    assert 4 <= len(done) < 30
    for name in done:
        with av.open(str(out / name)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 12
    # a rename whose record was lost
    path = out / ".repack/records.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM records WHERE time = (SELECT max(time) FROM records)")
    recorded = count_records(path, "repack")
    process = run_until(command, out, len(done) + 3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130 and "resumes from here" in err and "Traceback" not in err
    assert f"{30 - recorded} of 30 files to do" in err
    assert hidden(out) == []
    recorded = count_records(path, "repack")
    # The interrupt may have come between the last rename and its record: that file is due again.
    assert len(done) + 2 <= recorded <= len(outputs(out)) <= recorded + 1 < 30
    before = times(out)
    assert tool.main(arguments) == 0
    assert f"{30 - recorded} of 30 files to do" in capsys.readouterr().err
    assert len(outputs(out)) == 30 and hidden(out) == []
    assert sum(times(out)[name] == when for name, when in before.items()) == recorded
