"""``sce-video prepare ava`` on a small tree of the official layout.

How each official file is read, and its faults, is in tests/data_tools/prepare/test_ava_lists.py.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from helpers import official_trees
from helpers.run_tool import cells, prepared
from helpers.videos import write_video

from sce_video.data_tools.prepare import ava_lists
from sce_video.datasets.ava import read_actions

pytestmark = pytest.mark.usefixtures("in_process")
TRAIN, VAL = official_trees.AVA_MOVIES["train"], official_trees.AVA_MOVIES["val"]
NUMBERS = {video: number for number, video in enumerate((*TRAIN, *VAL))}
SECONDS = range(902, 908)
VAL_CSV = "annotations/ava_val_v2.2.csv"
VAL_BOXES = "annotations/ava_val_predicted_boxes.csv"
VAL_PKL = "annotations/ava_dense_proposals_val.FAIR.recall_93.9.pkl"
TRAIN_PKL = "annotations/ava_dense_proposals_train.FAIR.recall_93.9.pkl"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("official") / "ava"
    return official_trees.make_ava(
        root, seconds=9, size=(48, 64), frames=True, detections=("csv", "pkl")
    )


@pytest.fixture
def root(original, tmp_path):
    """A copy of the tree, which tests may change; videos and frames are symbolic links."""
    folder = tmp_path / "data/ava"
    shutil.copytree(original / "annotations", folder / "annotations")
    for name in ("videos", "frames"):
        (folder / name).mkdir()
        for path in (original / name).iterdir():
            (folder / name / path.name).symlink_to(path)
    return folder


@pytest.fixture
def run(root, capsys):
    """``run(*options)`` -> (exit status, stdout, stderr)."""
    return lambda *options: prepared(capsys, "ava", root, *options)


def lines_of(root, split):
    return [json.loads(line) for line in (root / f"ava_{split}.jsonl").read_text().splitlines()]


def texts(root):
    files = (path for path in sorted(root.iterdir()) if path.is_file())
    return {path.name: path.read_text() for path in files if path.suffix != ".sqlite"}


def persons_of(video):
    return official_trees.ava_persons(NUMBERS[video], 9, (48, 64))


def expected(videos):
    """Expected entries of the lists, from the persons in the movies."""
    entries = []
    for video in sorted(videos):
        persons = persons_of(video)
        for second in SECONDS:
            if (video, second) in ((videos[0], 903), (videos[-1], 905)):
                continue
            there = persons[:2] if (video, second) == (videos[0], 904) else persons
            entries.append(
                {
                    "video": video,
                    "timestamp": second,
                    "boxes": [list(person.box(second)) for person in there],
                    "labels": [list(person.actions) for person in there],
                    "persons": list(range(len(there))),
                }
            )
    return entries


# -- lists written --------------------------------------------------------------------------


def test_lists_hold_the_persons_of_the_movies(run, root):
    status, _, err = run()
    assert status == 0 and "numbers differ from the published ones" in err
    for split, videos in (("train", TRAIN), ("val", VAL)):
        entries = lines_of(root, split)
        found = [{k: v for k, v in entry.items() if k != "detections"} for entry in entries]
        assert found == expected(videos)
        keys = [(entry["video"], entry["timestamp"]) for entry in entries]
        assert keys == sorted(keys) and len(keys) == len(videos) * len(SECONDS) - 2
        for entry in entries:
            persons = persons_of(entry["video"])
            detected = np.array(entry["detections"])
            assert detected.shape == (3, 5) and (np.diff(detected[:, 4]) <= 0).all()
            assert (detected[:, 4] >= 0.92).all()
            boxes = np.array([person.box(entry["timestamp"]) for person in persons])
            order = np.argsort(detected[:, 0])  # from left to right, as the persons stand
            assert np.abs(detected[order, :4] - boxes).max() <= 0.011
    actions = read_actions(root / "ava_actions.json")
    assert {a.id: a.name for a in actions} == official_trees.AVA_NAMES
    assert [a.id for a in actions if not a.scored] == [16]
    assert sorted(texts(root)) == ["ava_actions.json", "ava_train.jsonl", "ava_val.jsonl"]


def test_frames_and_proposals_give_the_same_lists(run, root, original):
    run()
    pickles = (root / TRAIN_PKL, root / VAL_PKL)
    status, out, _ = run("--frames", root / "frames", "--detections", *pickles)
    assert status == 0 and out.count("unchanged") == 3
    # The split of a file of detections need not be given.
    mixed = root / "persons.csv"
    csv = [root / f"annotations/ava_{split}_predicted_boxes.csv" for split in ("val", "train")]
    mixed.write_text("".join(path.read_text() for path in csv))
    assert run("--detections", mixed)[1].count("unchanged") == 3
    shutil.rmtree(root / "videos")  # then the frames are found
    for path in csv:
        path.unlink()  # and the proposals
    assert run()[1].count("unchanged") == 3
    # mmaction2's: rawframes/ID/img_00001.jpg
    shutil.rmtree(root / "frames")
    for path in (original / "frames").iterdir():
        folder = root / "rawframes" / path.name
        folder.mkdir(parents=True)
        for number in range(1, 271):
            (folder / f"img_{number:05d}.jpg").symlink_to(path / f"{path.name}_{number:06d}.jpg")
    assert run()[1].count("unchanged") == 3


def test_seconds_with_detections_only(run, root):
    """Second 905 of the last movie of val, and not the excluded one."""
    assert "2 seconds have detections but no ground truth, and are left out" in run()[1]
    lines = lines_of(root, "val")
    assert run("--unannotated", "--force")[0] == 0
    more = lines_of(root, "val")
    (new,) = [entry for entry in more if entry not in lines]
    assert len(more) == len(lines) + 1 and len(lines_of(root, "train")) == 22
    assert (new["video"], new["timestamp"], new["boxes"]) == (VAL[1], 905, [])
    assert new["labels"] == new["persons"] == [] and len(new["detections"]) == 3
    assert (VAL[0], 903) not in {(entry["video"], entry["timestamp"]) for entry in more}


# -- counts -----------------------------------------------------------------------------------


def test_counts_are_compared_with_the_published_ones(run, root, monkeypatch):
    status, out, err = run("--strict")
    assert status == 1 and err.rstrip().endswith("see the table")
    for title, counts in {
        "actions": "10 80 differs",
        "scored actions": "9 60 differs",
        "ava_train, videos": "4 4 0 0 235 differs",
        "ava_val, videos": "2 2 0 0 64 differs",
        "ava_train, key frames": "22 22 0",
        "ava_train, boxes": "65 65 0",
        "ava_val, detections": "30 30 0",
    }.items():
        assert cells(out, title) == counts.split()
    labels = sum(len(own) for entry in lines_of(root, "val") for own in entry["labels"])
    assert cells(out, "ava_val, labels") == [str(labels)] * 2 + ["0"]
    monkeypatch.setattr(ava_lists, "PUBLISHED_VIDEOS", {"train": 4, "val": 2})
    monkeypatch.setattr(ava_lists, "PUBLISHED_ACTIONS", 10)
    monkeypatch.setattr(ava_lists, "PUBLISHED_SCORED", 9)
    status, out, err = run("--strict")
    assert status == 0 and "differs" not in out + err


# -- missing files ---------------------------------------------------------------------------


def test_missing_and_unreadable_videos_are_named_and_left_out(run, root):
    names = {path.stem: path for path in (root / "videos").iterdir()}
    for video in (TRAIN[1], VAL[0], TRAIN[2]):
        names[video].unlink()
    names[TRAIN[2]].write_bytes(b"no video")
    status, out, _ = run()
    assert status == 0
    assert cells(out, "ava_train, videos")[:4] == ["4", "3", "1", "1"]
    assert "missing (in videos; missing_ava.txt): 2 videos, left out of the lists" in out
    report = "".join(f"{video}\tno such video\n" for video in sorted((TRAIN[1], VAL[0])))
    assert (root / "missing_ava.txt").read_text() == report
    assert (root / "unreadable_ava.txt").read_text().startswith(f"{TRAIN[2]}\tcannot be opened")
    kept = {entry["video"] for entry in lines_of(root, "train")}
    assert kept == set(TRAIN) - {TRAIN[1], TRAIN[2]}
    status, out, _ = run("--keep-missing", "--no-check", "--force")
    assert status == 0 and "2 videos, kept in the lists (--keep-missing)" in out
    assert cells(out, "ava_train, videos")[3] == "not checked"
    assert len(lines_of(root, "train")) == 22


def test_no_video_at_all(run, root):
    shutil.rmtree(root / "videos")
    shutil.rmtree(root / "frames")
    status, _, err = run()
    assert status == 2 and "no folder of videos or frames" in err and "rawframes" in err
    (root / "videos").mkdir()
    assert "Nothing was written" in run()[2] and not texts(root)


def test_a_time_stamp_without_frames(run, root, original):
    """The first frame of second 906 is missing; the error names the row that needs it."""
    video = VAL[1]
    (root / "frames" / video).unlink()
    shutil.copytree(original / "frames" / video, root / "frames" / video)
    (root / f"frames/{video}/{video}_000181.jpg").unlink()
    text = (root / VAL_CSV).read_text().splitlines()
    line = 1 + next(i for i, row in enumerate(text) if row.startswith(f"{video},0906"))
    frames = ("--frames", root / "frames")
    status, _, err = run(*frames)
    assert status == 2 and not texts(root)
    assert f"{VAL_CSV}, line {line}: second 906 of video {video!r} has no frames in" in err
    assert "frame 181 does not exist. This concerns 1 key frames of 1 videos" in err
    status, out, _ = run("--skip-frameless", *frames)
    assert status == 0 and "1 key frames of val have no image and are left out" in out
    assert cells(out, "ava_val, key frames") == ["10", "9", "1"]
    assert (video, 906) not in {(e["video"], e["timestamp"]) for e in lines_of(root, "val")}
    assert run("--no-check", "--force", *frames)[0] == 0
    assert len(lines_of(root, "val")) == 10


def test_full_films(run, root, tmp_path):
    """One frame per second, so that a short file lasts as long as a film."""
    film = write_video(tmp_path / "film.mp4", np.zeros((1100, 16, 16, 3), np.uint8), fps=1)
    paths = {path.stem: path for path in (root / "videos").iterdir()}
    paths[TRAIN[0]].unlink()
    (root / f"videos/{TRAIN[0]}.mp4").symlink_to(film)
    status, _, err = run()
    assert status == 2 and f"both full films ({TRAIN[0]}.mp4) and 15-minute cuts" in err
    for path in paths.values():
        path.unlink(missing_ok=True)
    for video in NUMBERS:
        (root / f"videos/{video}.mp4").unlink(missing_ok=True)
        (root / f"videos/{video}.mp4").symlink_to(film)
    status, out, _ = run()
    assert status == 0 and "are full films, not 15-minute cuts. Set begins_at=0" in out
    assert len(lines_of(root, "train")) == 22


# -- bad input --------------------------------------------------------------------------------


def test_bad_rows_are_named_and_nothing_is_written(run, root):
    path = root / VAL_CSV
    line = len(path.read_text().splitlines()) + 1
    path.write_text(f"{path.read_text()}{TRAIN[1]},0902,0,0,1,1,12,0\n")
    status, _, err = run()
    assert status == 2 and len(err.splitlines()) == 1 and not texts(root)
    message = f"video {TRAIN[1]!r} is also in ava_train_v2.2.csv"
    assert err.startswith(f"prepare.py: error: {path}, line {line}: {message}")


def test_missing_files_are_named(run, root):
    (root / VAL_BOXES).unlink()
    (root / VAL_PKL).unlink()
    status, _, err = run()
    assert status == 2 and "no file of person detections of val" in err
    assert "--no-detections" in err
    status, out, _ = run("--no-detections")
    assert status == 0 and "no person detections, which testing needs" in out
    assert {len(entry["detections"]) for entry in lines_of(root, "train")} == {0}
    assert run("--detections", root / "none.csv")[0] == 2
    (root / "annotations/ava_val_excluded_timestamps_v2.2.csv").unlink()
    status, _, err = run("--no-detections")
    assert status == 2 and "no ava_val_excluded_timestamps_v2.2.csv. The command looked for" in err
