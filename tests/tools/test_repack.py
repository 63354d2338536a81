"""tools/data/repack.py on generated data sets, as a command and in this process."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
from helpers import numbered_frames, read_number, write_video
from repack_fakes import by_name

from sce_video.datasets import read_annotation_list, scan_folder
from sce_video.datasets.repack import Options, Settings, Shard, StorageError, make_plan, repack
from sce_video.datasets.repack.journal import Journal
from sce_video.datasets.repack.plan import name_outputs

FAST = ["--preset", "ultrafast", "--crf", "25", "--workers", "1", "--min-psnr", "20"]


@pytest.fixture(scope="module")
def tool(repo):
    path = repo / "tools" / "data" / "repack.py"
    spec = importlib.util.spec_from_file_location("repack_tool", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path):
    """A prepared data set: five videos of two classes, one of them listed twice."""
    root = tmp_path / "data"
    names = ["One/a b.avi", "One/c.avi", "One/c.mp4", "Two/d.avi", "Two/e.webm"]
    for number, name in enumerate(names):
        codec = "libvpx" if name.endswith("webm") else "mpeg4"
        write_video(root / name, numbered_frames(10 + number), codec=codec, options={"b": "1M"})
    lines = [f"{name} {int(name.startswith('Two'))}\n" for name in [*reversed(names), names[0]]]
    (root / "list.txt").write_text("".join(lines))
    return root


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


def test_a_folder(tool, data, tmp_path, capsys):
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


def test_a_list_with_failures(tool, data, tmp_path, capsys):
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
    # the file comes back: it and the other failure are tried again, nothing else
    write_video(data / "Two/e.webm", numbered_frames(10), codec="libvpx")
    assert tool.main([str(data / "list.txt"), str(tmp_path / "out"), *FAST]) == 1
    assert "2 of 5 files to do" in capsys.readouterr().err
    made = read_annotation_list(str(tmp_path / "out/list.txt"))
    assert (made.path(0), made.labels.tolist()) == ("Two/e.mp4", [1, 0, 0, 0, 0])


def times(folder):
    return {name: (folder / name).stat().st_mtime_ns for name in outputs(folder)}


def test_what_is_done_is_not_done_again(tool, data, tmp_path, capsys):
    out = tmp_path / "out"
    command = [str(data), str(out), *FAST]
    assert tool.main(command) == 0
    first = times(out)
    report = json.loads((out / "repack.json").read_text())
    assert tool.main(command) == 0
    assert times(out) == first and "0 of 5 files to do" in capsys.readouterr().err
    again = json.loads((out / "repack.json").read_text())
    assert again["psnr"] == report["psnr"] and again["bytes"] == report["bytes"]
    os.utime(data / "One/c.avi", ns=(1, 1))  # another source
    (out / "Two/d.mp4").write_bytes(b"cut")  # another output
    (out / "Two/e.mp4").unlink()
    assert tool.main(command) == 0
    changed = {name for name, when in times(out).items() if when != first[name]}
    assert changed == {"One/c.avi.mp4", "Two/d.mp4", "Two/e.mp4"}
    assert numbers(out / "Two/d.mp4") == list(range(13))
    second = times(out)
    assert tool.main([*command, "--force"]) == 0
    assert all(times(out)[name] != second[name] for name in ALL)


def test_other_settings_make_all_again_and_other_limits_none(tool, data, tmp_path, capsys):
    noise = np.random.default_rng(0).integers(0, 256, (5, 64, 80, 3), dtype=np.uint8)
    write_video(data / "Two/d.avi", noise, codec="mpeg4", options={"qscale": "2"})
    command = [str(data), str(tmp_path / "out"), *FAST]
    assert tool.main(command) == 0
    capsys.readouterr()
    assert tool.main([*command, "--threads", "2", "--timeout", "99", "--min-psnr", "21"]) == 0
    assert "0 of 5 files to do" in capsys.readouterr().err
    assert tool.main([*command, "--keyint", "3"]) == 0
    assert "5 of 5 files to do" in capsys.readouterr().err
    # what no longer is good enough is not left in its place
    assert tool.main([*command, "--keyint", "3", "--min-psnr", "90"]) == 1
    assert "Two/d.mp4" not in outputs(tmp_path / "out")
    report = json.loads((tmp_path / "out/repack.json").read_text())
    assert [(f["path"], f["kind"]) for f in report["failures"]] == [("Two/d.avi", "quality")]


def test_shards_do_every_file_once_and_are_merged(tool, data, tmp_path, capsys):
    out = tmp_path / "out"
    assert tool.main([str(data / "list.txt"), str(tmp_path / "whole"), *FAST]) == 0
    command = [str(data / "list.txt"), str(out), *FAST]
    done = []
    for number in (3, 1, 2):
        before = outputs(out)
        assert not (out / "list.txt").exists()
        assert tool.main([*command, "--shard", f"{number}/3"]) == 0
        new = [name for name in outputs(out) if name not in before]
        done += new
        part = (out / f".repack/list.shard-{number}-of-3.txt").read_text().splitlines()
        assert sorted({line.rsplit(" ", 1)[0] for line in part}) == sorted(new)
        if number != 2:
            text = capsys.readouterr().out
            assert f"{5 - len(done)} files of other shards are still to do" in text
            assert tool.main([*command, "--merge"]) == 2
            assert f"{5 - len(done)} of 5 files" in capsys.readouterr().err
    assert sorted(done) == ALL
    assert (out / "list.txt").read_text() == (tmp_path / "whole/list.txt").read_text()
    report = json.loads((out / "list.repack.json").read_text())
    assert report["done"] == 5 and "shard" not in report
    (out / "list.txt").unlink()
    first = times(out)
    assert tool.main([*command, "--merge"]) == 0
    assert (out / "list.txt").exists() and times(out) == first


def test_shards_with_failures_are_merged_too(tool, data, tmp_path, capsys):
    (data / "One/c.avi").write_bytes(b"no video at all")
    (data / "Two/d.avi").unlink()
    command = [str(data / "list.txt"), str(tmp_path / "out"), *FAST]
    statuses = [tool.main([*command, "--shard", f"{number}/2"]) for number in (1, 2)]
    assert set(statuses) <= {0, 1} and 1 in statuses
    assert "5 files: 3 done, 2 failed" in capsys.readouterr().out
    failed = (tmp_path / "out/list.failed.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in failed] == ["One/c.avi", "Two/d.avi"]


def test_of_several_journals_the_latest_entry_counts(tmp_path):
    with Journal(tmp_path, "b.jsonl") as journal:
        journal.add({"path": "x", "status": "failed"})
    with Journal(tmp_path, "a.jsonl") as journal:
        journal.add({"path": "x", "status": "done"})
        journal.reload()
        assert journal.entries["x"]["status"] == "done"
    with Journal(tmp_path, "b.jsonl") as journal:
        journal.add({"path": "x", "status": "again"})
    assert Journal(tmp_path, None).entries["x"]["status"] == "again"
    with Journal(tmp_path, "b.jsonl"), pytest.raises(ValueError, match="another run"):
        Journal(tmp_path, "b.jsonl")
    (tmp_path / "c.jsonl").write_text('{"path": "x"}\n')
    with pytest.raises(ValueError, match=r"c\.jsonl"):
        Journal(tmp_path, None)


def test_a_line_cut_in_two_does_not_spoil_the_next(tmp_path):
    with Journal(tmp_path, "a.jsonl") as journal:
        journal.add({"path": "x"})
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"path": "y", "ti')
    with Journal(tmp_path, "a.jsonl") as journal:
        journal.add({"path": "z"})
    assert sorted(Journal(tmp_path, None).entries) == ["x", "z"]


def test_shards_cover_any_list_exactly():
    paths = [f"class {i % 7}/video_{i}.mp4" for i in range(5000)]
    for count in (1, 2, 7, 32):
        shards = [Shard(number, count) for number in range(1, count + 1)]
        held = [[path for path in paths if shard.holds(path)] for shard in shards]
        assert sorted(sum(held, [])) == sorted(paths)
        assert min(map(len, held)) > 0.7 * 5000 / count


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


@pytest.fixture
def odd(tmp_path):
    """A crash, a hang and two sound files."""
    root = tmp_path / "odd"
    for name in ("a", "crash", "hang", "z"):
        write_video(root / f"{name}.mp4", numbered_frames(4), codec="mpeg4")
    return root


def run(root, out, **options):
    settings = Settings(preset="ultrafast", crf=25)
    options = Options(min_psnr=20, **options)
    return repack(make_plan(str(root), str(out)), str(out), settings, options, work=by_name)


def test_a_crash_and_a_hang_cost_their_files_only(odd, tmp_path):
    result = run(odd, tmp_path / "out", timeout=3, workers=2)
    kinds = {f["path"]: f["kind"] for f in result.report["failures"]}
    assert kinds == {"crash.mp4": "crash", "hang.mp4": "timeout"} and result.failed == 2
    assert "SIGSEGV" in result.report["failures"][0]["reason"]
    assert outputs(tmp_path / "out") == ["a.mp4", "z.mp4"] and hidden(tmp_path / "out") == []


def test_a_full_disk_stops_the_run_and_blames_no_video(odd, tmp_path):
    for name in ("crash", "hang"):
        (odd / f"{name}.mp4").unlink()
    write_video(odd / "full.mp4", numbered_frames(4), codec="mpeg4")
    with pytest.raises(StorageError, match="the disk is full"):
        run(odd, tmp_path / "out")
    assert outputs(tmp_path / "out") == ["a.mp4"] and hidden(tmp_path / "out") == []
    journal = (tmp_path / "out/.repack/journal.jsonl").read_text()
    assert "full.mp4" not in journal and '"failed"' not in journal
    (odd / "full.mp4").rename(odd / "y.mp4")  # room is made
    (odd / "calls.log").unlink()
    assert run(odd, tmp_path / "out").report["done"] == 3
    assert (odd / "calls.log").read_text().split() == ["y.mp4", "z.mp4"]


def test_left_overs_of_a_killed_run_are_removed_and_others_are_not(tool, data, tmp_path):
    folder = tmp_path / "out/Two"
    folder.mkdir(parents=True)
    for name in (".d.mp4.123.repack-tmp", ".other.mp4.123.repack-tmp", ".d.mp4.mine"):
        (folder / name).write_bytes(b"half")
    assert tool.main([str(data), str(tmp_path / "out"), *FAST]) == 0
    assert {path.name for path in hidden(tmp_path / "out")} == {
        ".other.mp4.123.repack-tmp",
        ".d.mp4.mine",
    }
    (folder / ".d.mp4.124.repack-tmp").write_bytes(b"half")  # of a file that is done since
    assert tool.main([str(data), str(tmp_path / "out"), *FAST]) == 0
    assert not (folder / ".d.mp4.124.repack-tmp").exists()


def test_files_of_others_are_not_written_over(tool, data, tmp_path, capsys):
    out = tmp_path / "out"
    theirs = write_video(out / "One/c.mp4", numbered_frames(3), codec="mpeg4").read_bytes()
    assert tool.main([str(data), str(out), *FAST]) == 2
    assert "One/c.mp4" in capsys.readouterr().err
    assert (out / "One/c.mp4").read_bytes() == theirs and outputs(out) == ["One/c.mp4"]
    assert tool.main([str(data), str(out), *FAST, "--force"]) == 0
    # one that repack made, whose journal is lost, is simply made again
    (out / ".repack/journal.jsonl").unlink()
    assert tool.main([str(data), str(out), *FAST]) == 0


def test_two_lists_share_a_folder_but_no_name(tool, data, tmp_path, capsys):
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
        (["--shard", "0/3"], "0/3"),
        (["--shard", "4/3"], "4/3"),
        (["--shard", "3"], "--shard"),
        (["--data-root", "x"], "--data-root"),
        (["--extensions", "ogv"], "no video"),
    ],
)
def test_wrong_usage(tool, data, tmp_path, capsys, options, words):
    assert tool.main([str(data), str(tmp_path / "out"), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith("repack: ") and words in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_wrong_places(tool, data, tmp_path, capsys):
    for source, destination in (
        (data, data),
        (data, data / "One"),
        (data / "One", data),
        (data / "list.txt", data),
        (data / "list.txt", data / "list.txt"),
        (data / "no.txt", tmp_path / "out"),
    ):
        assert tool.main([str(source), str(destination), *FAST]) == 2
        assert capsys.readouterr().err.startswith("repack: ")
    (data / "outside.txt").write_text("../elsewhere.mp4 0\nOne/c.avi 0\n")
    assert tool.main([str(data / "outside.txt"), str(tmp_path / "out"), *FAST]) == 2
    assert "outside" in capsys.readouterr().err
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked/One").touch()  # a file where a folder must be
    assert tool.main([str(data), str(tmp_path / "blocked"), *FAST]) == 2
    assert "cannot make a folder" in capsys.readouterr().err
    assert outputs(data) == ["One/c.mp4"]


def start(repo, tmp_path, **more):
    """The tool as a command on 30 files, killed by nobody yet."""
    frames = np.random.default_rng(0).integers(0, 256, (12, 144, 192, 3), dtype=np.uint8)
    first = write_video(tmp_path / "videos/00.mp4", frames, options={"preset": "ultrafast"})
    for number in range(1, 30):
        os.link(first, tmp_path / f"videos/{number:02}.mp4")
    command = [sys.executable, str(repo / "tools/data/repack.py"), str(tmp_path / "videos")]
    command += [str(tmp_path / "out"), "--crf", "30", "--min-psnr", "0", "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **more)
    limit = time.monotonic() + 60
    while len(outputs(tmp_path / "out")) < 4:
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.01)
    return command, process


@pytest.mark.slow
def test_a_killed_run_leaves_no_half_file_and_goes_on(repo, tmp_path):
    command, process = start(repo, tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = times(tmp_path / "out")
    assert 4 <= len(done) < 30
    for name in done:
        with av.open(str(tmp_path / "out" / name)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 12
    # a rename whose line in the journal was lost, and a line cut in two
    journal = tmp_path / "out/.repack/journal.jsonl"
    known = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(known[:-1]) + known[-1][:40])
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert f"{30 - (len(known) - 2)} of 30 files to do" in again.stderr
    assert len(outputs(tmp_path / "out")) == 30 and hidden(tmp_path / "out") == []
    now = times(tmp_path / "out")
    assert sum(now[name] == when for name, when in done.items()) >= len(known) - 2


@pytest.mark.slow
def test_an_interrupted_run_says_so(repo, tmp_path):
    _, process = start(repo, tmp_path, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "goes on from here" in err and "Traceback" not in err
    assert hidden(tmp_path / "out") == []
