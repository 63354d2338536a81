"""``sce-video prepare`` of UCF101, HMDB51, Kinetics, SSv2: small trees of the official layouts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import official_trees
from helpers.run_tool import prepare

from sce_video.datasets import open_reader, read_annotation_list

REPO = Path(__file__).resolve().parents[2]
NAMES = ("ucf101", "hmdb51", "kinetics", "ssv2")
SPLITS = [f"{part}_split{i}.txt" for i in (1, 2, 3) for part in ("train", "test")]
LISTS = {
    "ucf101": SPLITS,
    "hmdb51": SPLITS,
    "kinetics": ["k400_train.txt", "k400_val.txt"],
    "ssv2": ["train.txt", "val.txt"],
}
REPORT = {"ucf101": "ucf101", "hmdb51": "hmdb51", "kinetics": "k400", "ssv2": "ssv2"}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """One tree of each data set."""
    folder = tmp_path_factory.mktemp("official")
    for name in NAMES:
        getattr(official_trees, f"make_{name}")(folder / name)
    return folder


@pytest.fixture
def roots(originals, tmp_path):
    """A copy of the trees, which tests may change."""
    shutil.copytree(originals, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def run(roots, capsys):
    """``run(name, *options)`` -> (exit status, stdout, stderr)."""

    def command(name, *options):
        capsys.readouterr()
        status = prepare(name, roots / name, "--workers", "2", *options)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return command


def _cells(out, title):
    """The cells of a line of the table."""
    (line,) = (line for line in out.splitlines() if line.startswith(f"{title} "))
    return [cell.strip() for cell in line[len(title) :].split("  ") if cell.strip()]


def _texts(root):
    return {path.name: path.read_text() for path in root.glob("*.txt")}


# -- complete runs ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_lists_can_be_read_and_every_video_opens(name, run, roots):
    status, out, err = run(name)
    assert status == 0
    assert "counts differ from the published ones" in err
    root = roots / name
    class_file = "k400_classes.txt" if name == "kinetics" else "classes.txt"
    classes = (root / class_file).read_text().splitlines()
    assert {path.name for path in root.glob("*.txt")} == {*LISTS[name], class_file}
    for list_name in LISTS[name]:
        videos = read_annotation_list(str(root / list_name))
        assert set(videos.labels.tolist()) == set(range(4)) == set(range(len(classes)))
        for i in range(len(videos)):
            with open_reader(str(root / videos.path(i))) as reader:
                assert reader.read(np.arange(20)).shape == (20, 64, 64, 3)
        assert f"{root / list_name}: written" in out
    assert not list(root.glob(".*"))


def test_ucf101_lists_by_hand(run, roots):
    run("ucf101")
    texts = _texts(roots / "ucf101")
    assert texts["classes.txt"] == "ApplyEyeMakeup\nHandstandPushups\nJumpRope\nYoYo\n"
    assert texts["test_split2.txt"] == (
        "UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 0\n"
        "UCF-101/HandstandPushups/v_HandStandPushups_g08_c01.avi 1\n"
        "UCF-101/JumpRope/v_JumpRope_g08_c01.avi 2\n"
        "UCF-101/YoYo/v_YoYo_g08_c01.avi 3\n"
    )
    assert texts["train_split2.txt"].splitlines()[3:6] == [
        f"UCF-101/HandstandPushups/v_HandStandPushups_g{group}_c01.avi 1"
        for group in ("01", "15", "22")
    ]
    for split in (1, 2, 3):
        train, test = (
            {line for line in texts[f"{part}_split{split}.txt"].splitlines()}
            for part in ("train", "test")
        )
        assert len(train) == 12 and len(test) == 4 and not train & test


def test_hmdb51_lists_by_hand(run, roots):
    _, out, _ = run("hmdb51")
    texts = _texts(roots / "hmdb51")
    assert texts["classes.txt"] == "brush_hair\ncartwheel\nshoot_ball\nwave\n"
    assert texts["test_split3.txt"].splitlines()[1] == (
        "hmdb51_org/cartwheel/#122_Tom_&_Jerry;_part_2_cartwheel_u_nm_np1_fr_goo_0.avi 1"
    )
    assert [len(texts[name].splitlines()) for name in SPLITS] == [12, 4, 16, 4, 16, 4]
    assert _cells(out, "videos") == ["20", "20", "0", "0", "6,766", "differs"]


def test_kinetics_lists_by_hand(run, roots):
    _, out, _ = run("kinetics")
    texts = _texts(roots / "kinetics")
    assert texts["k400_classes.txt"] == "".join(f"{n}\n" for n in official_trees.KINETICS_CLASSES)
    train = texts["k400_train.txt"].splitlines()
    # The damaged video is replaced, and the user is told.
    assert train[0] == f"{official_trees.REPLACEMENT}/-t_00000000_000007_000017.mp4 0"
    assert train[7] == "train/-t_00010003_000037_000047.mp4 1"
    assert "note: 1 files taken from the folder of replacements" in out
    assert len(train) == 16 and len(texts["k400_val.txt"].splitlines()) == 8


def test_ssv2_lists_by_hand(run, roots):
    run("ssv2")
    texts = _texts(roots / "ssv2")
    assert texts["classes.txt"].splitlines() == [
        "Holding something next to something",
        "Pretending to put something behind something",
        "Pushing something from left to right",
        "Pushing something from right to left",
    ]
    assert texts["val.txt"].splitlines()[2:4] == [
        "20bn-something-something-v2/79691.webm 1",
        "20bn-something-something-v2/79692.webm 1",
    ]
    assert len(texts["train.txt"].splitlines()) == 16
    assert "1420" not in texts["train.txt"] + texts["val.txt"]  # of the test set


@pytest.mark.parametrize("layout", ["parts", "classes"])
def test_kinetics_in_sub_folders(layout, tmp_path):
    root = official_trees.make_kinetics(
        tmp_path, train_per_class=2, val_per_class=1, frames=4, layout=layout
    )
    assert prepare("kinetics", root) == 0
    lines = (root / "k400_train.txt").read_text().splitlines()
    inside = {"parts": "part_1", "classes": "massaging person's head"}[layout]
    assert lines[3] == f"train/{inside}/-t_00010001_000017_000027.mp4 1"


@pytest.mark.slow
def test_as_a_command(roots):
    command = [sys.executable, "-m", "sce_video", "prepare", "ucf101"]
    command.append(str(roots / "ucf101"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "checking 16/16 (100%)" in result.stderr
    assert "train_split1.txt: written" in result.stdout
    assert "\r" not in result.stderr  # no terminal


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_changes_nothing(name, run, roots):
    run(name)
    root = roots / name
    before = {path: path.stat().st_mtime_ns for path in root.glob("*.txt")}
    status, out, _ = run(name)
    assert status == 0
    assert out.count(": unchanged") == len(before)
    assert {path: path.stat().st_mtime_ns for path in root.glob("*.txt")} == before


def test_a_list_that_differs_is_kept_unless_forced(run, roots):
    run("ssv2")
    root = roots / "ssv2"
    right = _texts(root)
    (root / "val.txt").write_text("mine 0\n")
    status, _, err = run("ssv2")
    assert status == 2
    assert f"differ from the new result: {root / 'val.txt'}. Nothing was written; --force" in err
    assert (root / "val.txt").read_text() == "mine 0\n"
    status, out, _ = run("ssv2", "--force")
    assert status == 0
    assert f"{root / 'val.txt'}: replaced" in out and f"{root / 'train.txt'}: unchanged" in out
    assert _texts(root) == right


@pytest.mark.parametrize("name", NAMES)
def test_strict(name, run, roots):
    status, out, err = run(name, "--strict")
    assert status == 1
    assert f"{name}: counts differ from the published ones, see the table\n" in err
    assert "differs" in out
    assert (roots / name / LISTS[name][0]).is_file()  # the lists are written nevertheless


def test_strict_with_the_published_counts(run, roots, monkeypatch):
    """With the published counts patched to those of the tree."""
    from sce_video.data_tools.prepare import actions

    monkeypatch.setattr(actions, "SSV2_PUBLISHED", {"train": 16, "validation": 8})
    monkeypatch.setattr(actions, "SSV2_CLASSES", 4)
    status, out, err = run("ssv2", "--strict")
    assert status == 0
    assert "differ" not in out + err
    (roots / "ssv2/20bn-something-something-v2/78687.webm").unlink()
    status, out, _ = run("ssv2", "--strict", "--force")
    assert status == 1
    assert _cells(out, "train") == ["16", "15", "1", "0", "16", "differs"]
    assert _cells(out, "val") == ["8", "8", "0", "0", "8", "ok"]


def _first_video(root, name):
    path = read_annotation_list(str(root / LISTS[name][0])).path(0)
    return path, root / path


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_reported_and_left_out(name, run, roots):
    run(name)
    root = roots / name
    lines = (root / LISTS[name][0]).read_text().splitlines()
    path, full = lines[-1].rpartition(" ")[0], root / lines[-1].rpartition(" ")[0]
    content = full.read_bytes()
    full.unlink()
    status, out, err = run(name)
    assert status == 2 and "differ from the new result" in err  # never silently
    status, out, _ = run(name, "--force")
    assert status == 0
    report = root / f"missing_{REPORT[name]}.txt"
    assert report.read_text() == f"{path}\tno such file\n"
    assert f"missing ({report.name}): 1 files, left out of the lists" in out
    assert (root / LISTS[name][0]).read_text().splitlines() == lines[:-1]
    # Missing files are kept on demand; the report stays.
    run(name, "--force", "--keep-missing")
    assert (root / LISTS[name][0]).read_text().splitlines() == lines
    assert report.is_file()
    # The file exists again: the report is removed.
    full.write_bytes(content)
    status, out, _ = run(name, "--force")
    assert status == 0
    assert f"{report}: removed" in out
    assert not report.exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_unreadable_file_is_reported_and_left_out(name, run, roots):
    run(name)
    root = roots / name
    lines = (root / LISTS[name][0]).read_text().splitlines()
    bad = {lines[2].rpartition(" ")[0]: b"", lines[4].rpartition(" ")[0]: b"no video\n" * 99}
    for path, content in bad.items():
        (root / path).write_bytes(content)
    status, out, _ = run(name, "--force")
    assert status == 0
    report = root / f"unreadable_{REPORT[name]}.txt"
    rows = dict(line.split("\t") for line in report.read_text().splitlines())
    assert set(rows) == set(bad)
    assert rows[lines[2].rpartition(" ")[0]] == "is empty (0 bytes)"
    assert rows[lines[4].rpartition(" ")[0]].startswith("cannot be opened")
    assert f"unreadable ({report.name}): 2 files, left out of the lists" in out
    kept = (root / LISTS[name][0]).read_text().splitlines()
    assert kept == [lines[0], lines[1], lines[3], *lines[5:]]
    # Without the check they are in the lists again.
    status, out, _ = run(name, "--force", "--no-check")
    assert status == 0
    assert "not checked" in out
    assert (root / LISTS[name][0]).read_text().splitlines() == lines


def test_a_broken_link_without_a_check(run, roots):
    path = roots / "ssv2/20bn-something-something-v2/78687.webm"
    path.unlink()
    path.symlink_to("nowhere.webm")
    run("ssv2", "--no-check")
    assert "78687.webm\tno such file" in (roots / "ssv2/missing_ssv2.txt").read_text()


def test_lists_elsewhere(run, roots, tmp_path):
    run("ucf101", "--out", tmp_path / "lists")
    assert not list((roots / "ucf101").glob("*.txt"))
    line = (tmp_path / "lists/test_split1.txt").read_text().splitlines()[0]
    assert line == "UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi 0"


def test_folders_of_other_names(run, roots):
    root = roots / "hmdb51"
    run("hmdb51", "--out", roots / "a")
    (root / "hmdb51_org").rename(root / "avi")
    (root / "testTrainMulti_7030_splits").rename(roots / "splits")
    status, *_ = run("hmdb51", "--videos", root / "avi", "--annotations", roots / "splits")
    assert status == 0
    expected = (roots / "a/test_split1.txt").read_text().replace("hmdb51_org/", "avi/")
    assert (root / "test_split1.txt").read_text() == expected


# -- K200 --------------------------------------------------------------------------------------


def test_k200_by_a_class_list(run, roots, tmp_path):
    (tmp_path / "k200.txt").write_text("# two classes\nzumba\nmassaging person's head\n")
    status, out, _ = run("kinetics", "--k200-classes", tmp_path / "k200.txt")
    assert status == 0
    texts = _texts(roots / "kinetics")
    assert texts["k200_classes.txt"] == "massaging person's head\nzumba\n"
    wanted = [line for line in texts["k400_train.txt"].splitlines() if line[-1] in "13"]
    assert texts["k200_train.txt"].splitlines() == [
        line[:-1] + {"1": "0", "3": "1"}[line[-1]] for line in wanted
    ]
    assert len(wanted) == 8
    assert _cells(out, "k200_classes") == ["2", "200", "differs"]
    assert "K200 has all videos of its classes" in out


def test_k200_by_ids(run, roots, tmp_path):
    (tmp_path / "k200.txt").write_text("zumba\n")
    (tmp_path / "train.txt").write_text("-t_00030001\n-t_00030000\n")
    (tmp_path / "val.txt").write_text("-v_00030000\n")
    ids = [tmp_path / "train.txt", tmp_path / "val.txt"]
    status, *_ = run("kinetics", "--k200-classes", tmp_path / "k200.txt", "--k200-ids", *ids)
    assert status == 0
    assert (roots / "kinetics/k200_train.txt").read_text() == (
        "train/-t_00030000_000007_000017.mp4 0\ntrain/-t_00030001_000017_000027.mp4 0\n"
    )


def test_k200_errors(run, tmp_path):
    (tmp_path / "k200.txt").write_text("zumba\nmassaging persons head\n")
    status, _, err = run("kinetics", "--k200-classes", tmp_path / "k200.txt")
    assert status == 2
    assert f"{tmp_path / 'k200.txt'}, line 2: 'massaging persons head' is not a class" in err
    assert '''the nearest known name is "massaging person's head"''' in err
    status, _, err = run("kinetics", "--k200-classes", tmp_path / "gone.txt")
    assert status == 2 and "no class list" in err
    status, _, err = run("kinetics", "--k200")  # four classes only
    assert status == 2 and "--k200-classes FILE" in err
    status, _, err = run("kinetics", "--k200-ids", "a", "b")
    assert status == 2 and "--k200-ids needs --k200" in err


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_root_shows_the_official_layout(name, exists, tmp_path, capsys):
    root = tmp_path / "empty"
    if exists:
        root.mkdir()
    assert prepare(name, root) == 2
    err = capsys.readouterr().err
    assert err.startswith("prepare.py: error: no ")
    assert "must hold the unpacked official downloads" in err
    assert {
        "ucf101": "UCF-101/ApplyEyeMakeup/v_",
        "hmdb51": "testTrainMulti_7030_splits/brush_hair_test_split{1,2,3}.txt",
        "kinetics": "annotations/{train,val}.csv",
        "ssv2": "something-something-v2-labels.json",
    }[name] in err
    assert not root.exists() or not list(root.iterdir())


VIDEO_FOLDERS = {
    "ucf101": ["UCF-101"],
    "hmdb51": ["hmdb51_org"],
    "kinetics": ["train", "replacement"],
    "ssv2": ["20bn-something-something-v2"],
}


@pytest.mark.parametrize("name", NAMES)
def test_no_videos(name, run, roots):
    for folder in VIDEO_FOLDERS[name]:
        shutil.rmtree(roots / name / folder)
    status, _, err = run(name)
    assert status == 2 and "no folder of" in err
    (roots / name / VIDEO_FOLDERS[name][0]).mkdir()
    status, _, err = run(name)
    assert status == 2
    assert f"videos of {LISTS[name][0]} is on disk and readable; nothing was written" in err
    assert not list((roots / name).glob("*.txt"))


def _edit(path, change):
    path.write_text(change(path.read_text()))


def _edit_json(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


BAD = {
    "ucf101 line": (
        "ucf101",
        lambda root: _edit(root / "ucfTrainTestlist/trainlist02.txt", lambda t: t + "YoYo 3\n"),
        "trainlist02.txt, line 13: 'YoYo 3' must be 'CLASS/FILE.avi NUMBER'",
    ),
    "ucf101 class": (
        "ucf101",
        lambda root: _edit(root / "ucfTrainTestlist/testlist01.txt", lambda t: t + "YoYos/v.avi\n"),
        "testlist01.txt, line 5: unknown class 'YoYos'; the nearest known name is 'YoYo'",
    ),
    "ucf101 overlap": (
        "ucf101",
        lambda root: _edit(
            root / "ucfTrainTestlist/testlist01.txt",
            lambda t: t + "YoYo/v_YoYo_g22_c01.avi\n",
        ),
        "1 videos are in train_split1 and in test_split1",
    ),
    "ucf101 two spellings": (
        "ucf101",
        lambda root: _edit(
            root / "ucfTrainTestlist/testlist01.txt",
            lambda t: t + "YoYo/v_yoyo_g22_c01.avi\n",
        ),
        "are the same file, UCF-101/YoYo/v_YoYo_g22_c01.avi",
    ),
    "hmdb51 mark": (
        "hmdb51",
        lambda root: _edit(
            root / "testTrainMulti_7030_splits/wave_test_split3.txt", lambda t: t + "x.avi 4\n"
        ),
        "wave_test_split3.txt, line 6: 'x.avi 4' must be 'NAME.avi MARK'",
    ),
    "hmdb51 duplicate": (
        "hmdb51",
        lambda root: _edit(
            root / "testTrainMulti_7030_splits/wave_test_split1.txt",
            lambda t: t + t.splitlines()[0].replace(" 2", " 1"),
        ),
        "wave_test_split1.txt, line 6: 'April_09_wave_u_nm_np1_fr_goo_0.avi' is listed twice",
    ),
    "kinetics row": (
        "kinetics",
        lambda root: _edit(root / "annotations/val.csv", lambda t: t + "zumba,too short,1,2,val,0"),
        "val.csv, line 10: youtube_id 'too short'",
    ),
    "kinetics class": (
        "kinetics",
        lambda root: _edit(root / "annotations/val.csv", lambda t: t.replace("zumba", "sumba")),
        "val.csv, line 8: unknown class 'sumba'; the nearest known name is 'zumba'",
    ),
    "ssv2 template": (
        "ssv2",
        lambda root: _edit_json(
            root / "labels/something-something-v2-train.json",
            lambda data: data[3].update(template="Holding [something]"),
        ),
        "train.json, entry 4 (id 78690): unknown template 'Holding [something]'",
    ),
    "ssv2 duplicate": (
        "ssv2",
        lambda root: _edit_json(
            root / "labels/something-something-v2-validation.json",
            lambda data: data.append(data[0]),
        ),
        "validation.json, entry 9: id 78691 is listed twice",
    ),
    "ssv2 no json": (
        "ssv2",
        lambda root: _edit(root / "labels/something-something-v2-labels.json", lambda t: t[:-2]),
        "labels.json is not JSON",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_file_and_place(case, run, roots):
    name, spoil, message = BAD[case]
    spoil(roots / name)
    status, _, err = run(name)
    assert status == 2
    assert err.splitlines()[-1].startswith("prepare.py: error: ")
    assert message in err
    assert not list((roots / name).glob("*.txt"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["--time-limit", "0"], "timeout must be positive seconds, got 0.0"),
    ],
)
def test_bad_options(run, options, message):
    status, _, err = run("ucf101", *options)
    assert status == 2
    assert message in err


# -- the trees themselves ----------------------------------------------------------------------


def test_the_trees_are_reproducible_and_classes_differ(originals, tmp_path):
    again = official_trees.make_ssv2(tmp_path / "ssv2")

    def frames(root, video):
        with open_reader(str(root / f"20bn-something-something-v2/{video}.webm")) as reader:
            return reader.read(np.arange(20)).astype(int)

    first = frames(originals / "ssv2", "78687")
    np.testing.assert_array_equal(first, frames(again, "78687"))
    for other in ("78688", "79687"):  # another video of the class, another class
        assert np.abs(first - frames(again, other)).mean() > 10
