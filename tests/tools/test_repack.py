"""``sce-video repack`` on generated data sets."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import av
import pytest
from helpers.videos import numbered_frames, read_number, write_video

from sce_video.commands import repack as tool
from sce_video.datasets import read_annotation_list, scan_folder
from sce_video.jobs import RecordStore

pytestmark = pytest.mark.usefixtures("in_process")
FAST = ["--preset", "ultrafast", "--crf", "25", "--workers", "1", "--min-psnr", "20"]


ALL = ["One/a b.mp4", "One/c.avi.mp4", "One/c.mp4", "Two/d.mp4", "Two/e.mp4"]


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


@pytest.fixture
def repacked(capsys):
    """``repacked(source, out, *options)``: exit status, and what was printed."""

    def run(source, out, *options):
        capsys.readouterr()
        status = tool.main([str(source), str(out), *FAST, *map(str, options)])
        return status, "".join(capsys.readouterr())

    return run


def outputs(folder):
    """All visible files below a folder."""
    return sorted(
        str(path.relative_to(folder)) for path in Path(folder).rglob("*.mp4") if path.name[0] != "."
    )


def hidden(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file() and path.name[0] == "."]


def numbers(path):
    with av.open(str(path)) as container:
        return [read_number(f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]


def times(folder):
    return {name: (folder / name).stat().st_mtime_ns for name in outputs(folder)}


def test_a_folder_is_done_once(data, tmp_path, repacked):
    out = tmp_path / "out"
    status, said = repacked(data, out)
    assert status == 0 and outputs(out) == ALL and hidden(out) == []
    assert "5 files: 5 done, 0 failed" in said and "files/s" in said and "PSNR" in said
    for number, name in enumerate(ALL):
        assert numbers(out / name) == list(range(10 + number))
    report = json.loads((out / "repack.json").read_text())
    assert (report["done"], report["failed"], report["failures"]) == (5, 0, [])
    sources = [path for path in data.rglob("*") if path.suffix in (".avi", ".mp4", ".webm")]
    assert report["bytes"]["source"] == sum(path.stat().st_size for path in sources)
    assert report["bytes"]["output"] == sum((out / name).stat().st_size for name in ALL)
    assert report["psnr"]["worst"] <= report["psnr"]["mean"] and report["psnr"]["worst_path"]
    assert scan_folder(str(out)).classes == ("One", "Two")
    first = times(out)
    limits = ("--threads", 2, "--timeout", 99, "--min-psnr", 21)
    for options in ((), limits):
        status, said = repacked(data, out, *options)
        assert status == 0 and times(out) == first and "0 of 5 files to do" in said
        again = json.loads((out / "repack.json").read_text())
        assert again["psnr"] == report["psnr"] and again["bytes"] == report["bytes"]
    os.utime(data / "One/c.avi", ns=(1, 1))  # a changed source
    (out / "Two/d.mp4").write_bytes(b"cut")  # a damaged output
    (out / "Two/e.mp4").unlink()
    assert repacked(data, out)[0] == 0
    changed = {name for name, when in times(out).items() if when != first[name]}
    assert changed == {"One/c.avi.mp4", "Two/d.mp4", "Two/e.mp4"}
    assert numbers(out / "Two/d.mp4") == list(range(13))
    assert "5 of 5 files to do" in repacked(data, out, "--keyint", 3)[1]  # another setting
    second = times(out)
    assert repacked(data, out, "--keyint", 3, "--force")[0] == 0
    assert all(times(out)[name] != second[name] for name in ALL)


def test_a_list_with_failures(data, tmp_path, repacked):
    (data / "Two/d.avi").write_bytes(b"no video at all")
    (data / "Two/e.webm").unlink()
    out = tmp_path / "out"
    status, said = repacked(data / "list.txt", out)
    assert status == 1 and outputs(out) == ALL[:3]
    assert "5 files: 3 done, 2 failed" in said and "Two/d.avi: cannot be opened" in said
    made = read_annotation_list(str(out / "list.txt"))
    paths = [made.path(index) for index in range(len(made))]
    assert paths == ["One/c.mp4", "One/c.avi.mp4", "One/a b.mp4", "One/a b.mp4"]
    assert made.labels.tolist() == [0, 0, 0, 0]
    failed = (out / "list.failed.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in failed] == ["Two/d.avi", "Two/e.webm"]
    report = json.loads((out / "list.repack.json").read_text())
    assert [failure["kind"] for failure in report["failures"]] == ["bad", "missing"]
    # the file exists again: only it and the other failure are tried again
    write_video(data / "Two/e.webm", numbered_frames(10), codec="libvpx")
    status, said = repacked(data / "list.txt", out)
    assert status == 1 and "2 of 5 files to do" in said
    made = read_annotation_list(str(out / "list.txt"))
    assert (made.path(0), made.labels.tolist()) == ("Two/e.mp4", [1, 0, 0, 0, 0])
    # a video that the user put at the path of the failed output stays
    theirs = write_video(out / "Two/d.mp4", numbered_frames(3), codec="mpeg4").read_bytes()
    status, said = repacked(data / "list.txt", out)
    assert status == 2 and "Two/d.mp4 already exists and was not created by repack" in said
    assert repacked(data / "list.txt", out, "--force")[0] == 1  # nothing to replace it with
    assert (out / "Two/d.mp4").read_bytes() == theirs


def test_temporary_files_of_a_killed_run_are_removed_and_others_are_not(data, tmp_path):
    out = tmp_path / "out"
    with (
        RecordStore(out / ".repack/records.sqlite", "repack") as own,
        RecordStore(tmp_path / "elsewhere", "repack") as of_others,
    ):
        name = "Two/.0123456789abcdef.{}-01234567.0123abcd.part"
        left, other = (out / name.format(store.id) for store in (own, of_others))
    (out / "Two").mkdir()
    for path in (left, other):
        path.write_bytes(b"half")
    foreign = out / "Two/.d.mp4.mine"
    foreign.write_bytes(b"half")
    assert tool.main([str(data), str(out), *FAST]) == 0
    assert set(hidden(out)) == {other, foreign} and not left.exists()


def test_other_files_are_not_overwritten(data, tmp_path, repacked):
    out = tmp_path / "out"
    theirs = write_video(out / "One/c.mp4", numbered_frames(3), codec="mpeg4").read_bytes()
    status, said = repacked(data, out)
    assert status == 2 and "One/c.mp4" in said
    assert (out / "One/c.mp4").read_bytes() == theirs and outputs(out) == ["One/c.mp4"]
    assert repacked(data, out, "--force")[0] == 0
    # an output of repack whose record is lost is repacked again
    (out / ".repack/records.sqlite").unlink()
    assert repacked(data, out)[0] == 0
    for name in ("list.txt", "list.failed.txt", "list.repack.json"):
        (out / name).write_text('{"mine": 1}')
        status, said = repacked(data / "list.txt", out)
        assert status == 2 and name in said and "repack did not make it" in said
        assert (out / name).read_text() == '{"mine": 1}'
        (out / name).unlink()
    # nor the list itself
    (data / "list.txt").rename(out / "list.txt")
    text = (out / "list.txt").read_text()
    assert repacked(out / "list.txt", out, "--data-root", data, "--force")[0] == 2
    assert (out / "list.txt").read_text() == text


def test_lists_share_a_folder_but_no_output(data, tmp_path, repacked):
    out = tmp_path / "out"
    for path, line in {
        "data/train.txt": "One/c.avi 0",
        "data/val.txt": "Two/d.avi 1\nOne/c.avi 0",
        "data/test.txt": "One/c.mp4 0",
        "other/train.txt": "Two/d.avi 1",
        "mounted/train.txt": "One/c.avi 0",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(f"{line}\n")
    assert repacked(data / "train.txt", out)[0] == 0
    status, said = repacked(data / "val.txt", out)
    assert status == 0 and "1 of 2 files to do" in said  # known from the other list
    status, said = repacked(data / "test.txt", out)
    assert status == 2 and "One/c.avi" in said and "One/c.mp4" in said
    assert (out / "train.txt").read_text() == "One/c.mp4 0\n"
    assert (out / "val.txt").read_text() == "Two/d.mp4 1\nOne/c.mp4 0\n"
    # another list of the same name is refused; not under another mount point, nor with more entries
    root = ("--data-root", data)
    status, said = repacked(tmp_path / "other/train.txt", out, *root)
    assert status == 2 and "data/train.txt" in said and "other/train.txt" in said
    assert repacked(tmp_path / "mounted/train.txt", out, *root)[0] == 0
    with open(tmp_path / "mounted/train.txt", "a") as file:
        file.write("Two/d.avi 1\n")
    assert repacked(tmp_path / "mounted/train.txt", out, *root)[0] == 0


def test_two_roots_with_equal_paths_do_not_mix(tmp_path, repacked):
    for name, count in (("train", 5), ("val", 9)):
        write_video(tmp_path / name / "c/1.mp4", numbered_frames(count), codec="mpeg4")
    out = tmp_path / "out"
    assert repacked(tmp_path / "train", out)[0] == 0
    status, said = repacked(tmp_path / "val", out)
    assert status == 2 and str(tmp_path / "train") in said and str(tmp_path / "val") in said
    assert numbers(out / "c/1.mp4") == list(range(5))
    shutil.copytree(tmp_path / "train", tmp_path / "mounted")  # keeps the modification time
    assert "0 of 1 files to do" in repacked(tmp_path / "mounted", out)[1]
    assert repacked(tmp_path / "val", out, "--force")[0] == 0
    assert numbers(out / "c/1.mp4") == list(range(9))


def test_files_whose_sources_are_away_stay_done(data, tmp_path, repacked):
    out, listed = tmp_path / "out", data / "list.txt"
    assert repacked(listed, out)[0] == 0
    first, text = times(out), (out / "list.txt").read_text()
    (data / "Two").rename(tmp_path / "away")
    status, said = repacked(listed, out)
    assert status == 0 and "5 done, 0 failed" in said
    assert "2 finished files whose source is missing" in said
    assert times(out) == first and (out / "list.txt").read_text() == text
    assert repacked(listed, out, "--force")[0] == 0
    assert {name for name, when in times(out).items() if when == first[name]} == set(ALL[3:])
    # with other settings they fail; the outputs stay
    assert repacked(listed, out, "--keyint", "2")[0] == 1 and outputs(out) == ALL
    (tmp_path / "away").rename(data / "Two")
    status, said = repacked(listed, out, "--keyint", "2")
    assert status == 0 and "2 of 5 files to do" in said


def test_an_output_never_overwrites_a_source(tmp_path, repacked):
    root = tmp_path / "data"
    for name in ("a.mp4", "x/a.mp4"):
        write_video(root / name, numbered_frames(4), codec="mpeg4")
    (root / "list.txt").write_text("a.mp4 0\nx/a.mp4 1\n")
    content = (root / "x/a.mp4").read_bytes()
    for more in ((), ("--force",)):
        status, said = repacked(root / "list.txt", root / "x", *more)
        assert status == 2 and "which is a source" in said
    # the same through a symbolic link among the sources
    (tmp_path / "out").mkdir()
    (root / "a.mp4").rename(tmp_path / "out/b.mp4")
    (root / "b.mp4").symlink_to(tmp_path / "out/b.mp4")
    (root / "list.txt").write_text("b.mp4 0\n")
    assert "which is a source" in repacked(root / "list.txt", tmp_path / "out", "--force")[1]
    assert (root / "x/a.mp4").read_bytes() == content and outputs(tmp_path / "out") == ["b.mp4"]


def test_wrong_paths(data, tmp_path, repacked):
    (data / "outside.txt").write_text("../elsewhere.mp4 0\nOne/c.avi 0\n")
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked/One").touch()  # a file where a folder must be
    for name in ("named/v.avi", "named/v.mp4/x.avi"):  # an output has the name of a folder
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data / "One/c.avi", tmp_path / name)
    for source, destination, message in (
        (data, data, ""),
        (data, data / "One", ""),
        (data / "One", data, ""),
        (data / "list.txt", data, ""),
        (data / "list.txt", data / "list.txt", ""),
        (data / "no.txt", tmp_path / "out", ""),
        (data / "outside.txt", tmp_path / "out", "outside"),
        (data, tmp_path / "blocked", "cannot create a folder"),
        (tmp_path / "named", tmp_path / "out", "'v.mp4'"),
    ):
        status, said = repacked(source, destination)
        assert status == 2 and "repack.py: error: " in said and message in said
    assert outputs(data) == ["One/c.mp4"] and not (tmp_path / "out").exists()
