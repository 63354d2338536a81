"""FineGym-99 and EPIC-KITCHENS-100: small trees of the official layouts."""

from __future__ import annotations

import csv
import json

import pytest
from helpers.run_tool import prepare
from helpers.videos import decode_all, numbered_frames, read_numbers, write_video

from sce_video.commands.repack import main as repack
from sce_video.data_tools.prepare.cut_clips import finegym_clips, read_epic_kitchens, read_finegym

pytestmark = pytest.mark.usefixtures("in_process")
EVENT = "0LtLS9wROrk_E_000002_000005"
ELEMENTS = {f"{EVENT}_A_0000_0001": 6, f"{EVENT}_A_0001_0002": 74}
VALIDATION = f"{EVENT}_A_0002_0003"
EPIC_HEADER = (
    "narration_id", "participant_id", "video_id", "narration_timestamp", "start_timestamp",
    "stop_timestamp", "start_frame", "stop_frame", "narration", "verb", "verb_class", "noun",
    "noun_class", "all_nouns", "all_noun_classes",
)  # fmt: skip


def make_finegym(root):
    folder = root / "annotations"
    folder.mkdir(parents=True)
    lines = [f"Clabel: {i:3d}; set:  1; Glabel: {i + 1:3d}; (VT) element {i}\n" for i in range(99)]
    (folder / "gym99_categories.txt").write_text("".join(lines))
    lines = [f"{name} {label}\n" for name, label in ELEMENTS.items()]
    (folder / "gym99_train_element_v1.0.txt").write_text("".join(lines))
    (folder / "gym99_val_element.txt").write_text(f"{VALIDATION} 88\n")
    segments = {
        "A_0000_0001": {"stages": 1, "timestamps": [[0.2, 1.0]]},
        "A_0001_0002": {"stages": 2, "timestamps": [[1.0, 1.4], [1.4, 1.8]]},
        "A_0002_0003": {"stages": 1, "timestamps": [[2.0, 2.4]]},
    }
    event = {"E_000002_000005": {"event": 4, "timestamps": [[2.0, 5.0]], "segments": segments}}
    other = {"E_000000_000001": {"event": 1, "timestamps": [[0.0, 1.0]], "segments": None}}
    data = {"0LtLS9wROrk": event | other}
    (folder / "finegym_annotation_info_v1.0.json").write_text(json.dumps(data))
    options = {"preset": "ultrafast", "crf": "12", "g": "50"}
    write_video(root / "videos/0LtLS9wROrk.mp4", numbered_frames(125), fps=25, options=options)
    return root


def epic_row(name, start, stop, verb, noun):
    video = name.rpartition("_")[0]
    return {
        **dict.fromkeys(EPIC_HEADER, "x"),
        "narration_id": name,
        "video_id": video,
        "start_timestamp": start,
        "stop_timestamp": stop,
        "verb_class": verb,
        "noun_class": noun,
    }


def write_rows(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(rows)


EPIC_TRAIN = [
    epic_row("P01_01_0", "00:00:00.14", "00:00:03.37", 1, 2),
    epic_row("P01_01_1", "00:59:59.50", "01:00:02.00", 0, 2),
]
EPIC_VALIDATION = [epic_row("P01_11_0", "00:00:00.00", "00:00:01.89", 1, 0)]


def make_epic(root, train=EPIC_TRAIN):
    folder = root / "epic-kitchens-100-annotations"
    folder.mkdir(parents=True)
    for kind, names in {"verb": ("take", "put"), "noun": ("tap", "spoon", "plate")}.items():
        rows = [{"id": i, "key": n, "instances": [n], "category": "c"} for i, n in enumerate(names)]
        write_rows(folder / f"EPIC_100_{kind}_classes.csv", rows[0], rows)
    write_rows(folder / "EPIC_100_train.csv", EPIC_HEADER, train)
    write_rows(folder / "EPIC_100_validation.csv", EPIC_HEADER, EPIC_VALIDATION)
    return root


def lines(path):
    return path.read_text().splitlines()


def test_finegym_from_whole_videos_to_lists(tmp_path, capsys):
    root = make_finegym(tmp_path / "gym")
    assert prepare("finegym", str(root), "--segments") == 0
    assert "3 clips of 1 videos" in capsys.readouterr().out
    arguments = [str(root / "segments.csv"), str(root / "subactions"), "--data-root", str(root)]
    settings = ["--short-side", "none", "--crf", "12", "--preset", "ultrafast"]
    assert repack([*arguments, *settings, "--workers", "1"]) == 0
    # Seconds 2.2 to 3.0 of the video, and both stages of the second element: 3.0 to 3.8.
    for name, numbers in zip(ELEMENTS, (range(55, 75), range(75, 95)), strict=True):
        assert read_numbers(decode_all(root / f"subactions/{name}.mp4")) == list(numbers)
    assert prepare("finegym", str(root), "--samples", "2", "--workers", "1") == 0
    first, second = (f"subactions/{name}.mp4" for name in ELEMENTS)
    assert lines(root / "train.txt") == [f"{first} 6", f"{second} 74"]
    assert lines(root / "train_2.txt") == [f"{first} 6", f"{second} 74"]
    assert lines(root / "train_ub_s1.txt") == [f"{second} 0"]
    assert lines(root / "val_ub_s1.txt") == [f"subactions/{VALIDATION}.mp4 14"]
    assert lines(root / "classes_ub_s1.txt")[0] == "(VT) element 74"
    assert not (root / "train_fx_s1.txt").exists()  # no validation video of that set
    assert "20,484" in capsys.readouterr().out


def test_bad_files_of_finegym(tmp_path):
    root = make_finegym(tmp_path / "gym")
    (root / "annotations/finegym_annotation_info_v1.0.json").write_text('{"0LtLS9wROrk": {}}')
    with pytest.raises(ValueError, match=f"no times for {EVENT}_A_0000_0001"):
        list(finegym_clips(root))
    path = root / "annotations/gym99_val_element.txt"
    for line, message in {
        f"{EVENT}_A_0002_0003 99": "line 1: label 99 has no name, because there are only 99",
        "0LtLS9wROrk 3": "line 1: .* must be 'VIDEO_E_",
        f"{VALIDATION} 1\n{VALIDATION} 1": "line 2: .* is listed twice",
        f"{next(iter(ELEMENTS))} 6": "1 videos are in train and in val",
    }.items():
        path.write_text(line)
        with pytest.raises(ValueError, match=message):
            read_finegym(root)
    (root / "annotations/gym99_categories.txt").write_text("Clabel: 1; set: 1; Glabel: 1; x")
    with pytest.raises(ValueError, match="line 1: .* must be 'Clabel: 0"):
        read_finegym(root)


def test_epic_kitchens(tmp_path, capsys):
    root = make_epic(tmp_path / "epic")
    (root / "clips").mkdir()
    for row in (*EPIC_TRAIN, *EPIC_VALIDATION):
        (root / f"clips/{row['narration_id']}.mp4").touch()
    assert prepare("epic_kitchens", str(root), "--no-check") == 0
    assert lines(root / "train_verb.txt") == ["clips/P01_01_0.mp4 1", "clips/P01_01_1.mp4 0"]
    assert lines(root / "val_noun.txt") == ["clips/P01_11_0.mp4 0"]
    assert lines(root / "classes_action.txt") == ["take plate", "put tap", "put plate"]
    assert lines(root / "train_action.txt") == ["clips/P01_01_0.mp4 2", "clips/P01_01_1.mp4 0"]
    assert lines(root / "val_action.txt") == ["clips/P01_11_0.mp4 1"]
    assert "67,217" in capsys.readouterr().out
    (root / "EPIC-KITCHENS/P01/videos").mkdir(parents=True)
    (root / "EPIC-KITCHENS/P01/videos/P01_01.MP4").touch()
    assert prepare("epic_kitchens", str(root), "--segments") == 0
    assert lines(root / "segments.csv")[1:] == [
        "EPIC-KITCHENS/P01/videos/P01_01.MP4,0.140,3.370,P01_01_0.mp4",
        "EPIC-KITCHENS/P01/videos/P01_01.MP4,3599.500,3602.000,P01_01_1.mp4",
    ]
    assert "1 clips of 1 missing videos" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (epic_row("P01_01_9", "00:00:03.37", "00:00:03.37", 1, 2), "starts and ends at 3.37 s"),
        (epic_row("P01_01_9", "00:00:03.37", "00:00:03", 1, 2), "ends at 3 s, before its start"),
        (epic_row("P01_01_9", "3,37", "00:00:04.00", 1, 2), "start is not a time: '3,37'"),
        (epic_row("P01_01_9", "00:00:01", "00:00:02", 2, 2), "verb_class '2' is not one of the 2"),
        (EPIC_TRAIN[0], "line 4: P01_01_0 is listed twice"),
    ],
)
def test_bad_rows_of_epic_kitchens(tmp_path, row, message):
    root = make_epic(tmp_path / "epic", [*EPIC_TRAIN, row])
    with pytest.raises(ValueError, match=message):
        read_epic_kitchens(root)
