"""``sce-video prepare`` of UCF101, HMDB51, Kinetics, SSv2: small trees of the official layouts.

How each official list is read, and its faults, is in tests/data_tools/prepare.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers import official_trees
from helpers.run_tool import cells, prepare, prepared

from sce_video.data_tools.prepare import action_sets
from sce_video.datasets import open_reader, read_annotation_list

pytestmark = pytest.mark.usefixtures("in_process")
NAMES = ("ucf101", "hmdb51", "kinetics", "ssv2")
SPLITS = [f"{part}_split{i}.txt" for i in (1, 2, 3) for part in ("train", "test")]
LISTS = {
    "ucf101": SPLITS,
    "hmdb51": SPLITS,
    "kinetics": ["k400_train.txt", "k400_val.txt"],
    "ssv2": ["train.txt", "val.txt"],
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """One tree of each data set."""
    folder = tmp_path_factory.mktemp("official")
    for name in NAMES:
        getattr(official_trees, f"make_{name}")(folder / name, frames=4)
    return folder


@pytest.fixture
def roots(originals, tmp_path):
    """A copy of the trees, which tests may change."""
    shutil.copytree(originals, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def run(roots, capsys):
    """``run(name, *options)`` -> (exit status, stdout, stderr)."""
    return lambda name, *options: prepared(capsys, name, roots / name, *options)


def texts(root):
    return {path.name: path.read_text() for path in root.glob("*.txt")}


@pytest.mark.parametrize("name", NAMES)
def test_lists_can_be_read_and_every_video_opens(name, run, roots):
    status, out, err = run(name, "--strict")
    assert status == 1 and "differs" in out
    assert f"{name}: numbers differ from the published ones, see the table\n" in err
    root = roots / name
    class_file = "k400_classes.txt" if name == "kinetics" else "classes.txt"
    classes = (root / class_file).read_text().splitlines()
    assert {path.name for path in root.glob("*.txt")} == {*LISTS[name], class_file}
    for list_name in LISTS[name]:
        videos = read_annotation_list(str(root / list_name))
        assert set(videos.labels.tolist()) == set(range(4)) == set(range(len(classes)))
        with open_reader(str(root / videos.path(0))) as reader:
            assert reader.read(np.arange(4)).shape == (4, 64, 64, 3)
        assert f"{root / list_name}: written" in out
    assert not list(root.glob(".*"))


def test_missing_and_unreadable_files_are_reported_and_left_out(run, roots, monkeypatch):
    """With the published counts patched to those of the tree."""
    monkeypatch.setattr(action_sets, "SSV2_PUBLISHED", {"train": 16, "validation": 8})
    monkeypatch.setattr(action_sets, "SSV2_CLASSES", 4)
    root = roots / "ssv2"
    status, out, err = run("ssv2", "--strict", "--no-check")
    assert status == 0 and "differ" not in out + err
    lines = (root / "train.txt").read_text().splitlines()
    gone, empty = (line.rpartition(" ")[0] for line in lines[:2])
    content = (root / gone).read_bytes()
    (root / gone).unlink()
    (root / empty).write_bytes(b"")
    before = texts(root)
    status, out, err = run("ssv2")
    assert status == 2 and "differ from the new result" in err  # never silently
    assert texts(root) == before
    status, out, _ = run("ssv2", "--strict", "--force")
    assert status == 1
    assert cells(out, "train") == ["16", "15", "1", "1", "16", "differs"]
    assert cells(out, "val") == ["8", "8", "0", "0", "8", "ok"]
    assert (root / "missing_ssv2.txt").read_text() == f"{gone}\tno such file\n"
    assert (root / "unreadable_ssv2.txt").read_text() == f"{empty}\tis empty (0 bytes)\n"
    assert (root / "train.txt").read_text().splitlines() == lines[2:]
    # Missing files are kept on demand; the report stays. Without the check all others are listed.
    status, out, _ = run("ssv2", "--force", "--keep-missing", "--no-check")
    assert status == 0 and "not checked" in out
    assert (root / "train.txt").read_text().splitlines() == lines
    (root / gone).write_bytes(content)
    status, out, _ = run("ssv2", "--force", "--no-check")
    assert status == 0 and f"{root / 'missing_ssv2.txt'}: removed" in out


def test_other_folders(run, roots, tmp_path):
    root = roots / "hmdb51"
    run("hmdb51", "--out", roots / "a", "--no-check")
    assert not list(root.glob("*.txt"))
    (root / "hmdb51_org").rename(root / "avi")
    (root / "testTrainMulti_7030_splits").rename(roots / "splits")
    there = ("--videos", root / "avi", "--annotations", roots / "splits")
    assert run("hmdb51", *there, "--no-check")[0] == 0
    expected = (roots / "a/test_split1.txt").read_text().replace("hmdb51_org/", "avi/")
    assert (root / "test_split1.txt").read_text() == expected


def test_k200(run, roots, tmp_path):
    (tmp_path / "k200.txt").write_text("# two classes\nzumba\nmassaging person's head\n")
    (tmp_path / "train.txt").write_text("-t_00030001\n-t_00030000\n")
    (tmp_path / "val.txt").write_text("-v_00030000\n")
    classes = ("--k200-classes", tmp_path / "k200.txt", "--no-check")
    ids = ("--k200-ids", tmp_path / "train.txt", tmp_path / "val.txt")
    status, out, _ = run("kinetics", *classes, *ids)
    assert status == 0 and cells(out, "k200_classes") == ["2", "200", "differs"]
    assert "note: 1 files taken from the folder of replacements" in out
    written = texts(roots / "kinetics")
    assert written["k200_classes.txt"] == "massaging person's head\nzumba\n"
    assert written["k200_train.txt"] == (
        "train/-t_00030000_000007_000017.mp4 1\ntrain/-t_00030001_000017_000027.mp4 1\n"
    )
    for options, message in (
        (("--k200",), "--k200-classes FILE"),  # four classes only
        (("--k200-ids", "a", "b"), "--k200-ids needs --k200"),
    ):
        status, _, err = run("kinetics", *options)
        assert status == 2 and message in err


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_root_shows_the_official_layout(name, tmp_path, capsys):
    assert prepare(name, tmp_path) == 2
    err = capsys.readouterr().err
    assert err.startswith("prepare.py: error: ") and " no " in err.splitlines()[0]
    assert "must contain the unpacked official downloads" in err
    layouts = ("UCF-101/App", "testTrainMulti", "annotations/{train,val}", "something-v2-labels")
    assert dict(zip(NAMES, layouts, strict=True))[name] in err
    assert not list(tmp_path.iterdir())


def test_bad_input_is_one_line_and_nothing_is_written(run, roots):
    for options, message in (
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["--time-limit", "0"], "--time-limit must be above 0"),
    ):
        status, _, err = run("ssv2", *options)
        assert status == 2 and message in err
    assert not texts(roots / "ssv2")
