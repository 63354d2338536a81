"""UCF101, HMDB51, Something-Something V2, Diving48 and NTU RGB+D: official lists, by hand."""

from __future__ import annotations

import json

import pytest
from helpers.run_tool import prepare

from sce_video.data_tools.prepare.action_sets import (
    HMDB51,
    NTU60_CLASSES,
    SSV2,
    UCF101,
    read_class_index,
    read_diving48,
    read_hmdb51,
    read_ntu60,
    read_split_list,
    read_ssv2,
    read_template_entries,
    read_ucf101,
)
from sce_video.data_tools.prepare.official import Entry


def write(path, content=""):
    """A file of text, or of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((content if isinstance(content, str) else json.dumps(content)).encode())
    return path


def refused(read, path, content, *arguments):
    """The message about a file with this content."""
    with pytest.raises(ValueError, match=path.name) as error:
        read(write(path, content), *arguments)
    return str(error.value)


# -- UCF101 -----------------------------------------------------------------------------------

CLASSES = ("ApplyEyeMakeup", "HandstandPushups", "YoYo")
NAMES = (
    "ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi",
    "HandstandPushups/v_HandStandPushups_g08_c01.avi",
    "YoYo/v_YoYo_g15_c01.avi",
    "YoYo/v_YoYo_g22_c01.avi",
)


@pytest.fixture
def ucf101(tmp_path):
    """Lists of four videos (CRLF, as in the official archive); empty files for them."""
    lists = tmp_path / "ucfTrainTestlist"
    write(lists / "classInd.txt", "1 ApplyEyeMakeup\r\n2 HandstandPushups\r\n3 YoYo\r\n")
    labelled = [f"{name} {' AHY'.index(name[0])}\r\n" for name in NAMES]
    for split in (1, 2, 3):
        train = "".join(line for i, line in enumerate(labelled, 1) if i != split)
        write(lists / f"trainlist0{split}.txt", train)
        write(lists / f"testlist0{split}.txt", f"{NAMES[split - 1]}\r\n\r\n")
    for name in NAMES:
        write(tmp_path / "UCF-101" / name)
    return tmp_path


def test_ucf101(ucf101):
    official = read_ucf101(ucf101)
    names = [f"{part}_split{i}.txt" for i in (1, 2, 3) for part in ("train", "test")]
    assert [split.list_name for split in official.splits] == names
    labels = (0, 1, 2, 2)
    entries = tuple(Entry(*pair) for pair in zip(NAMES, labels, strict=True))
    assert official.splits[0].entries == entries[1:]
    assert official.splits[1].entries == entries[:1]
    assert official.class_maps[0].names == CLASSES
    # The numbers of the data set's page and of the lists themselves.
    assert official.published_videos == 13320
    assert [split.published for split in official.splits] == [9537, 3783, 9586, 3734, 9624, 3696]
    located = UCF101.locate(ucf101, official)
    assert len(located) == 4 and not any(p.missing or p.remark for p in located.values())
    elsewhere = ucf101 / "other"
    (ucf101 / "UCF-101").rename(elsewhere)
    with pytest.raises(FileNotFoundError, match="no folder of videos"):
        UCF101.locate(ucf101, official)
    assert UCF101.locate(ucf101, official, elsewhere)[NAMES[3]].path == f"other/{NAMES[3]}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v_a.avi 1\n", "line 1: 'v_a.avi 1' must be 'CLASS/FILE.avi NUMBER'"),
        ("YoYo/v_a.avi 3\nYoyos/v_b.avi 3\n", "line 2: unknown class 'Yoyos'; the nearest"),
        ("YoYo/v_a.avi 2\n", "has number 2, but the number of YoYo in classInd.txt is 3"),
        ("YoYo/v_a.avi 3\n\nYoYo/v_a.avi 3\n", "line 3: 'YoYo/v_a.avi' is listed twice"),
    ],
)
def test_bad_lists_of_ucf101(tmp_path, text, message):
    assert message in refused(read_split_list, tmp_path / "t.txt", text, CLASSES, True)


def test_other_bad_files_of_ucf101(ucf101):
    lists = ucf101 / "ucfTrainTestlist"
    numbered = "YoYo/v_a.avi 3\n"
    message = refused(read_split_list, lists / "t.txt", numbered, CLASSES, False)
    assert message.endswith("must be 'CLASS/FILE.avi'")
    message = refused(read_class_index, lists / "c.txt", "1 A\n2\n")
    assert "line 2: '2' must be '2 CLASS'" in message
    write(lists / "testlist02.txt", f"{NAMES[3]}\n")
    with pytest.raises(ValueError, match=r"1 videos are in train_split2 and in test_split2 .*g22"):
        read_ucf101(ucf101)
    (lists / "testlist02.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"testlist02.txt\n(.|\n)*UCF-101/ApplyEyeMakeup/v"):
        read_ucf101(ucf101)


@pytest.mark.parametrize("spelled", ["folder", "file", "list"])
def test_upper_and_lower_case_of_handstand_pushups(ucf101, spelled):
    folder = ucf101 / "UCF-101/HandstandPushups"
    if spelled == "folder":
        folder.rename(ucf101 / "UCF-101/HandStandPushups")
    elif spelled == "file":
        next(folder.iterdir()).rename(folder / "v_HandstandPushups_g08_c01.avi")
    else:
        for path in (ucf101 / "ucfTrainTestlist").glob("t*list0*.txt"):
            path.write_text(path.read_text().replace("HandstandPushups/v", "HandStandPushups/v"))
    official = read_ucf101(ucf101)
    (entry,) = official.splits[3].entries
    location = UCF101.locate(ucf101, official)[entry.name]
    assert entry.label == 1 and location.missing is None
    assert "with other upper and lower case" in location.remark
    assert (ucf101 / location.path).is_file()


# -- HMDB51 -----------------------------------------------------------------------------------

ODD = "Brushing_#1_&_(2)_[_NEW_AUDIO_]_UPDATED!!!!;*?_brush_hair_h_cm_np1_le_goo_1.avi"


@pytest.fixture
def hmdb51(tmp_path):
    """Two classes; the class "wave" is written first, so that order comes from the names."""
    marks = {"wave": {"a.avi": "112", "b.avi": "120"}, "brush_hair": {ODD: "121", "c.avi": "211"}}
    for name, videos in marks.items():
        for split in (1, 2, 3):
            path = tmp_path / f"testTrainMulti_7030_splits/{name}_test_split{split}.txt"
            write(path, "".join(f"{v} {m[split - 1]} \n" for v, m in videos.items()))
        for video in videos:
            write(tmp_path / "hmdb51_org" / name / video)
    return tmp_path


def test_hmdb51(hmdb51):
    write(hmdb51 / "testTrainMulti_7030_splits/.DS_Store")
    official = read_hmdb51(hmdb51)
    assert official.class_maps[0].names == ("brush_hair", "wave")
    odd, c = Entry(f"brush_hair/{ODD}", 0), Entry("brush_hair/c.avi", 0)
    a, b = Entry("wave/a.avi", 1), Entry("wave/b.avi", 1)
    assert {split.list_name: split.entries for split in official.splits} == {
        "train_split1.txt": (odd, a, b),
        "test_split1.txt": (c,),
        "train_split2.txt": (c, a),
        "test_split2.txt": (odd, b),
        "train_split3.txt": (odd, c),
        "test_split3.txt": (a,),
    }
    assert official.unused == ("wave/b.avi",) and len(official.names()) == 4
    assert official.published_videos == 6766
    assert [split.published for split in official.splits] == [3570, 1530] * 3
    assert [split.per_class for split in official.splits] == [70, 30] * 3
    located = HMDB51.locate(hmdb51, official)
    assert located[odd.name].path == f"hmdb51_org/brush_hair/{ODD}"
    assert not any(location.missing for location in located.values())
    # A glob would read [...], * and ? of the name, and find another file or none.
    folder = hmdb51 / "hmdb51_org/brush_hair"
    (folder / ODD).rename(folder / ODD.replace("[_NEW_AUDIO_]", "N"))
    assert HMDB51.locate(hmdb51, official)[odd.name].missing == "no such file"


def test_bad_splits_of_hmdb51(hmdb51):
    write(hmdb51 / "testTrainMulti_7030_splits/wave_test_split1.txt", "a.avi 1\nb.avi 3\n")
    with pytest.raises(ValueError, match=r"split1.txt, line 2: 'b.avi 3' must be 'NAME.avi MARK'"):
        read_hmdb51(hmdb51)


# -- Something-Something V2 -------------------------------------------------------------------

LABELS = {
    "Approaching something with your camera": "0",
    "Something falling like a feather or paper": "2",
    "Putting something similar to other things that are already on the table": "1",
}
TEMPLATES = tuple(sorted(LABELS, key=LABELS.get))
TRAIN = [
    {
        "id": "78687",
        "label": "approaching potato with your camera",
        "template": "Approaching [something] with your camera",
        "placeholders": ["potato"],
    },
    {"id": "42326", "template": "[Something] falling like a feather or paper"},
]
TEMPLATE = "Putting [something similar to other things that are already on the table]"


@pytest.mark.parametrize(
    ("folder", "prefix"), [("labels", "something-something-v2-"), (".", ""), ("given", "")]
)
def test_ssv2(tmp_path, folder, prefix):
    parts = {"labels": LABELS, "train": TRAIN, "validation": [{"id": "1", "template": TEMPLATE}]}
    for part, data in parts.items():
        write(tmp_path / folder / f"{prefix}{part}.json", data)
    given = tmp_path / "given" if folder == "given" else None
    official = read_ssv2(tmp_path, given)
    assert official.class_maps[0].names == TEMPLATES
    assert official.class_maps[0].published == 174
    train, val = official.splits
    assert (train.list_name, train.published) == ("train.txt", 168913)
    assert (val.list_name, val.published) == ("val.txt", 24777)
    assert train.entries == (Entry("78687.webm", 0), Entry("42326.webm", 2))
    assert val.entries == (Entry("1.webm", 1),)
    write(tmp_path / "20bn-something-something-v2/1.webm")
    located = SSV2.locate(tmp_path, official)
    assert located["1.webm"].path == "20bn-something-something-v2/1.webm"
    assert (located["1.webm"].missing, located["42326.webm"].missing) == (None, "no such file")
    write(tmp_path / folder / f"{prefix}validation.json", TRAIN[1:])
    with pytest.raises(ValueError, match=r"1 videos are in train and in val .*42326"):
        read_ssv2(tmp_path, given)
    (tmp_path / folder / f"{prefix}train.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"no train file. The command looked for (.|\n)*/78687\.webm"
    ):
        read_ssv2(tmp_path, given)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([TRAIN[0], {"id": "5"}], "entry 2: {'id': '5'} has no 'id' and 'template'"),
        ([{"id": None, "template": "x"}], "entry 1: id None is not a number"),
        (
            [TRAIN[0], {"id": "5", "template": "Approaching [things] with your camera"}],
            "entry 2 (id 5): unknown template 'Approaching [things] with your camera'; the nearest "
            "known name is 'Approaching something with your camera'",
        ),
        ([TRAIN[0], TRAIN[1], TRAIN[0]], "entry 3: id 78687 is listed twice"),
    ],
)
def test_bad_lists_of_ssv2(tmp_path, entries, message):
    assert message in refused(read_template_entries, tmp_path / "train.json", entries, TEMPLATES)


# -- Diving48 and NTU RGB+D -------------------------------------------------------------------

VOCABULARY = [["Back", "15som", "05Twis", "FREE"], ["Back", "15som", "15Twis", "FREE"]]


def lines(path):
    return path.read_text().splitlines()


def dive(name, label):
    return {"vid_name": name, "label": label, "start_frame": 7, "end_frame": 85}


@pytest.fixture
def diving48(tmp_path):
    for name, data in {
        "vocab": VOCABULARY,
        "V2_train": [dive("-mmq0PT-u8k_00155", 0), dive("a_00001", 1)],
        "V2_test": [dive("8qRmKunCjtY_00016", 1)],
    }.items():
        write(tmp_path / f"annotations/Diving48_{name}.json", data)
    for name in ("-mmq0PT-u8k_00155", "8qRmKunCjtY_00016"):
        write(tmp_path / f"rgb/{name}.mp4")
    return tmp_path


def test_diving48(diving48, capsys):
    assert prepare("diving48", str(diving48), "--no-check") == 0
    assert lines(diving48 / "train.txt") == ["rgb/-mmq0PT-u8k_00155.mp4 0"]
    assert lines(diving48 / "test.txt") == ["rgb/8qRmKunCjtY_00016.mp4 1"]
    assert lines(diving48 / "classes.txt") == ["+".join(words) for words in VOCABULARY]
    assert "rgb/a_00001.mp4" in (diving48 / "missing_diving48.txt").read_text()
    out = capsys.readouterr().out
    assert "15,027" in out and "1,970" in out and "differs" in out


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("V2_train", [dive("a", 2)], r"entry 1 \(a\): label 2 is not one of the 2"),
        ("V2_train", [dive("a", True)], "label True"),
        ("V2_test", [dive("a_00001", 0)], "1 videos are in train and in test"),
        ("vocab", [["Back"], ["Back"]], "entry 1: 'Back' is empty or listed twice"),
    ],
)
def test_bad_files_of_diving48(diving48, name, data, message):
    write(diving48 / f"annotations/Diving48_{name}.json", data)
    with pytest.raises(ValueError, match=message):
        read_diving48(diving48)


def test_ntu60(tmp_path, capsys):
    folder = tmp_path / "ntu60/nturgb+d_rgb"
    for name in (
        "S001C001P001R001A001", "S001C002P003R001A060", "S017C003P008R002A043",
        "S018C001P041R001A061",
    ):  # fmt: skip
        write(folder / f"{name}_rgb.avi")
    write(folder / "readme.avi")
    assert prepare("ntu60", str(tmp_path / "ntu60"), "--no-check") == 0
    expected = {
        "train_subject": [("S001C001P001R001A001", 0), ("S017C003P008R002A043", 42)],
        "test_subject": [("S001C002P003R001A060", 59)],
        "train_view": [("S001C002P003R001A060", 59), ("S017C003P008R002A043", 42)],
        "test_view": [("S001C001P001R001A001", 0)],
    }
    for name, entries in expected.items():
        assert lines(tmp_path / f"ntu60/{name}.txt") == [
            f"nturgb+d_rgb/{video}_rgb.avi {label}" for video, label in entries
        ]
    out = capsys.readouterr().out
    assert "1 files of actions from A061 on" in out and "1 files with another name" in out
    assert "40,320" in out and len(set(NTU60_CLASSES)) == 60
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has a name like S001"):
        read_ntu60(tmp_path, tmp_path / "empty")
