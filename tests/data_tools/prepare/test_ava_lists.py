"""AVA's official files, person detections and pickles, line by line."""

import pickle
from collections import Counter

import numpy as np
import pytest
from helpers.videos import numbered_frames, write_video

from sce_video.data_tools.prepare.ava_files import (
    Detections,
    check_box,
    merge_actions,
    read_action_list,
    read_annotations,
)
from sce_video.data_tools.prepare.ava_lists import probe_video
from sce_video.datasets.ava import Action

NAMES = {1: "bend", 12: "stand", 17: "carry", 80: "watch"}
GOOD = "film,0902,0.1,0.2,0.3,0.4,12,0"


def write(path, text):
    path.write_text(text)
    return path


# -- annotations ------------------------------------------------------------------------------


def test_rows_of_one_box_are_merged(tmp_path):
    rows = [
        "-5KQ66BBWC4,0902,0.077,0.151,0.283,0.811,80,1",
        "-5KQ66BBWC4,0902,0.226,0.032,0.366,0.497,12,0",
        "-5KQ66BBWC4,0902,0.077,0.151,0.283,0.811,12,1",
        "-5KQ66BBWC4,0902,0.077,0.151,0.283,0.811,17,2",  # the same box, another person
        "-5KQ66BBWC4,0903,0.077,0.151,0.283,0.811,1,1",
        "other,1798,0,0,1,1,1",  # no person
    ]
    found = read_annotations(write(tmp_path / "a.csv", "\n".join(rows) + "\n"), NAMES)
    box = (0.077, 0.151, 0.283, 0.811)
    assert {key: frame.boxes for key, frame in found.frames.items()} == {
        ("-5KQ66BBWC4", 902): {
            (box, 1): [80, 12],
            ((0.226, 0.032, 0.366, 0.497), 0): [12],
            (box, 2): [17],
        },
        ("-5KQ66BBWC4", 903): {(box, 1): [1]},
        ("other", 1798): {((0, 0, 1, 1), -1): [1]},
    }
    where = f"{tmp_path / 'a.csv'}, line "
    assert [frame.where for frame in found.frames.values()] == [f"{where}{n}" for n in (1, 5, 6)]
    assert found.videos() == {"-5KQ66BBWC4": f"{where}1", "other": f"{where}6"}
    assert not found.remarks


def test_key_frames_without_persons_and_odd_rows(tmp_path):
    rows = ["film,0902", "film,0903,,,,,,", "", GOOD.replace("0902", "0904"), "film,0905"]
    rows += [GOOD.replace("0902", "0904"), "film,0906,0.5,0.5,0.5,0.9,12,0"]
    rows += ["film,0907,-0.004,0,1.004,1,12,0"]
    found = read_annotations(write(tmp_path / "a.csv", "\ufeff" + "\r\n".join(rows)), NAMES)
    assert list(found.frames) == [("film", second) for second in range(902, 908)]
    assert [len(frame.boxes) for frame in found.frames.values()] == [0, 0, 1, 0, 0, 1]
    assert found.frames["film", 907].boxes == {((0, 0, 1, 1), 0): [12]}
    assert found.frames["film", 904].where.endswith("line 4")
    assert sorted(found.remarks.values()) == [1, 1, 1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("film,0902,0.1,0.2,1.3,0.4,12,0", r"box 0\.1,0\.2,1\.3,0\.4 is outside the frame"),
        ("film,0902,0.3,0.2,0.1,0.4,12,0", r"box 0\.3,0\.2,0\.1,0\.4 has inverted corners"),
        ("film,0901,0.1,0.2,0.3,0.4,12,0", "timestamp 901 is not in .* 902 to 1798"),
        ("film,0902,0.1,0.2,0.3,0.4,13,0", r"action 13 is not in the action list, ids 1 to 80"),
        ("film,0902,0.1,0.2,0.3,0.4,12,0,0.9", "9 cells, not 8"),
        ("film", "does not begin with VIDEO,TIMESTAMP"),
    ],
)
def test_faulty_rows_are_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=r"a\.csv is empty"):
        read_annotations(write(tmp_path / "a.csv", "\n"), NAMES)
    path = write(tmp_path / "a.csv", f"{GOOD}\n\n{row}\n")
    with pytest.raises(ValueError, match=rf"a\.csv, line 3: .*{message}"):
        read_annotations(path, NAMES)


def test_boxes_are_clipped_within_the_tolerance_only():
    remarks = Counter()
    assert check_box([-0.005, 0.0, 1.005, 1.0], "here", remarks) == (0, 0, 1, 1)
    assert check_box([0.0, 0.0, 1.0, 1.0], "here", remarks) == (0, 0, 1, 1)
    assert list(remarks.values()) == [1]
    for numbers in ([-0.0051, 0, 1, 1], [0, 0, 1, 1.0051]):
        with pytest.raises(ValueError, match="here: .* outside"):
            check_box(numbers, "here", remarks)
    # Nothing of the first one is inside the frame, the second one has no height.
    for numbers in ([1.0, 0.1, 1.004, 0.2], [0.2, 0.1, 0.4, 0.1]):
        assert check_box(numbers, "here", remarks) is None
    assert remarks["boxes without width or height, left out"] == 2


# -- actions ----------------------------------------------------------------------------------


def test_both_forms_of_action_lists(tmp_path):
    old = (
        'item {\n  name: "bend/bow (at the waist)"\n  id: 1\n}\nitem {\n  name: "a {b}"\n  id: 3\n}'
    )
    assert read_action_list(write(tmp_path / "l", old)) == {
        1: "bend/bow (at the waist)",
        3: "a {b}",
    }
    new = (
        'label {\n  name: "crawl"\n  label_id: 2\n  label_type: PERSON_MOVEMENT\n}\n'
        'label{ name: "say \\"id: 7\\""label_id: 79 label_type: PERSON_INTERACTION}\n'
    )
    assert read_action_list(write(tmp_path / "l", new)) == {2: "crawl", 79: 'say "id: 7"'}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"l is not an action list: no block item"),
        ("item {\n id: 1\n}", r"l, line 2: the block has no name"),
        ('item {\n name: "a"\n id: 81\n}', r"l, line 2: id 81 is not in 1 to 80"),
        ('item { name: "a" id: 5 } item { name: "b" id: 5 }', r"l, line 2: id 5 is listed twice"),
    ],
)
def test_faulty_action_lists_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_action_list(write(tmp_path / "l", "\n" + text))


def test_scored_actions_are_marked_and_others_named_by_their_ids_without_the_full_list():
    every = {1: "bend", 2: "crawl", 3: "kneel"}
    assert merge_actions({1: "bend", 3: "kneel"}, every) == [
        Action(1, "bend", True),
        Action(2, "crawl", False),
        Action(3, "kneel", True),
    ]
    with pytest.raises(ValueError, match=r"action 4 \(fall\) is in the list of scored"):
        merge_actions({4: "fall"}, every)
    actions = merge_actions({i: f"name {i}" for i in range(3, 81)}, None)
    assert [action.id for action in actions] == list(range(1, 81))
    assert [a.name for a in actions if not a.scored] == ["action 1", "action 2"]
    assert actions[2] == Action(3, "name 3", True)


# -- detections -------------------------------------------------------------------------------


def detections_of(path, min_score=0.9, videos=("film", "-a")):
    found = Detections()
    found.add_file(path, dict.fromkeys(videos), min_score)
    return found


def test_slowfast_detections(tmp_path):
    rows = [
        "film,0902,0.036,0.098,0.550,0.979,,0.995518",
        "film,0902,0.036,0.098,0.550,0.979,12,0.995518",  # one row per action, one box
        "film,0902,0.1,0.2,0.3,0.4,,0.9",
        "film,0902,0.1,0.2,0.3,0.4,,0.97",  # listed twice: the higher score counts
        "film,0902,0.1,0.2,0.3,0.4,,0.93",
        "film,0903,0.1,0.2,0.3,0.4,,0.9",
        "-a,1798,0.1,0.2,0.3,0.4,,0.899999",
        "-a,1798,0.5,0.5,0.5,0.6,,0.95",
    ]
    path = write(tmp_path / "d.csv", "\n".join(rows) + "\n")
    found = detections_of(path)
    assert found.boxes == {
        ("film", 902): {(0.036, 0.098, 0.55, 0.979): 0.995518, (0.1, 0.2, 0.3, 0.4): 0.97},
        ("film", 903): {(0.1, 0.2, 0.3, 0.4): 0.9},
    }
    assert found.low == 1 and found.files == {path: 8} and sum(found.remarks.values()) == 1
    assert detections_of(path, 0.0).boxes["-a", 1798] == {(0.1, 0.2, 0.3, 0.4): 0.899999}


def test_mmaction2_proposals(tmp_path):
    content = {
        "film,0902": np.array([[0.036, 0.098, 0.55, 0.979, 0.995518], [0, 0, 1, 1, 0.2]]),
        "film,0903": np.zeros((0, 5)),
        "-a,1798": np.array([[0.25, 0.5, 0.75, 1, 0.9375]], dtype=np.float32),
        "film,0904": [[0.25, 0.5, 0.75, 1, 0.95]],
        "film,0905": [],
    }
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps(content))
    found = detections_of(path)
    assert found.boxes == {
        ("film", 902): {(0.036, 0.098, 0.55, 0.979): 0.995518},
        ("-a", 1798): {(0.25, 0.5, 0.75, 1.0): 0.9375},
        ("film", 904): {(0.25, 0.5, 0.75, 1.0): 0.95},
    }
    assert found.low == 1 and found.files == {path: 4}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("film,0902,0.1,0.2,0.3,0.4,,1.5", r"score 1\.5 is not in 0 to 1.*detections"),
        ("film,0902,0.1,0.2,0.3,0.4,,", "'' is not a number"),
        ("film,0902,0.1,0.2,0.3,0.4,0.9", "7 cells, not 8"),
        ("flim,0902,0.1,0.2,0.3,0.4,,0.9", "'flim' is not in the annotation files.*'film'"),
    ],
)
def test_faulty_detections_are_named(tmp_path, row, message):
    path = write(tmp_path / "d.csv", f"film,0902,0.1,0.2,0.3,0.4,,0.9\n{row}\n")
    with pytest.raises(ValueError, match=rf"d\.csv, line 2: .*{message}"):
        detections_of(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r"p\.pkl contains a list, not a dict of proposals"),
        ({1: np.zeros((1, 5))}, "key 1 is not VIDEO,TIMESTAMP"),
        ({"flim,0902": np.zeros((1, 5))}, "key 'flim,0902': video 'flim' is not in the annotation"),
        ({"film,0902": np.zeros((1, 4))}, r"key 'film,0902': \(1, 4\), not an array \(n, 5\)"),
        ({"film,0902": [[0, 0, 1, 1, "x"]]}, "key 'film,0902': list, not an array"),
        (
            {"film,0902": np.array([[0, 0, 1, 1, 0.9], [0, 0, 1, 1, 1.25]])},
            r"key 'film,0902', row 1: score 1\.25 is not in 0 to 1",
        ),
        ({"film,0902": [[0, 0, 1, 1, np.nan]]}, "row 0: score nan is not"),
    ],
)
def test_faulty_proposals_are_named(tmp_path, content, message):
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=message):
        detections_of(path)


# -- videos and options -----------------------------------------------------------------------


def test_the_duration_of_a_video(tmp_path):
    for name in ("v.mp4", "v.mkv"):
        path = write_video(tmp_path / name, numbered_frames(45), fps=30)
        assert probe_video(str(path)) == pytest.approx(1.5, abs=0.05)
    damaged = tmp_path / "d.mp4"
    damaged.write_bytes((tmp_path / "v.mp4").read_bytes()[:100])
    assert "cannot be opened or decoded" in probe_video(str(damaged))
    assert "cannot be opened" in probe_video(str(tmp_path / "none.mp4"))


def doubled(depth):
    """A pickle of a tuple of tuples that stands for 2**depth numbers."""
    pairs = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x94" for i in range(depth))
    return b"K\x01\x94" + pairs


def test_proposals_that_repeat_a_table(tmp_path):
    path, table = tmp_path / "p.pkl", np.tile([0, 0, 1, 1, 0.9], (5000, 1))
    path.write_bytes(pickle.dumps({f"film,{902 + i:04}": table for i in range(800)}))
    with pytest.raises(ValueError, match="more boxes than the file has bytes"):
        detections_of(path)
    text = b"\x80\x04}\x8c\x09film,0902" + b"\x94" + doubled(40)[3:].replace(b"h\x00", b"]")
    path.write_bytes(text + b"s.")
    with pytest.raises(ValueError, match=r"p\.pkl"):
        detections_of(path)
    path.write_bytes(pickle.dumps({"film,0902": [[0, 0, 1, 1, 10**400]]}))
    with pytest.raises(ValueError, match="key 'film,0902': list, not an array"):
        detections_of(path)
