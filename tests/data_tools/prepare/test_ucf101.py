"""UCF101's official lists, by hand."""

from __future__ import annotations

import pytest

from sce_video.data_tools.prepare.actions import (
    UCF101,
    read_class_index,
    read_split_list,
    read_ucf101,
)
from sce_video.data_tools.prepare.official import Entry

CLASSES = ("ApplyEyeMakeup", "HandstandPushups", "YoYo")


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def tree(tmp_path):
    """Lists of four videos (CRLF, as in the official archive); empty files for them."""
    lists = tmp_path / "ucfTrainTestlist"
    _write(lists / "classInd.txt", "1 ApplyEyeMakeup\r\n2 HandstandPushups\r\n3 YoYo\r\n")
    names = [
        "ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi",
        "HandstandPushups/v_HandStandPushups_g08_c01.avi",
        "YoYo/v_YoYo_g15_c01.avi",
        "YoYo/v_YoYo_g22_c01.avi",
    ]
    for split, tested in ((1, 0), (2, 1), (3, 2)):
        train = [n for i, n in enumerate(names) if i != tested]
        numbers = {"A": 1, "H": 2, "Y": 3}
        _write(lists / f"trainlist0{split}.txt", "".join(f"{n} {numbers[n[0]]}\r\n" for n in train))
        _write(lists / f"testlist0{split}.txt", f"{names[tested]}\r\n\r\n")
    for name in names:
        _write(tmp_path / "UCF-101" / name, "")
    return tmp_path


def test_the_official_files(tree):
    official = read_ucf101(tree)
    assert [split.list_name for split in official.splits] == [
        "train_split1.txt",
        "test_split1.txt",
        "train_split2.txt",
        "test_split2.txt",
        "train_split3.txt",
        "test_split3.txt",
    ]
    assert official.splits[0].entries == (
        Entry("HandstandPushups/v_HandStandPushups_g08_c01.avi", 1),
        Entry("YoYo/v_YoYo_g15_c01.avi", 2),
        Entry("YoYo/v_YoYo_g22_c01.avi", 2),
    )
    assert official.splits[1].entries == (Entry("ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi", 0),)
    assert official.class_maps[0].names == CLASSES
    # The numbers of the data set's page and of the lists themselves.
    assert official.published_videos == 13320
    assert [split.published for split in official.splits] == [9537, 3783, 9586, 3734, 9624, 3696]
    located = UCF101.locate(tree, official)
    assert len(located) == 4
    assert all(
        location.missing is None and location.remark is None for location in located.values()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ApplyEyeMakeup/v_a.avi\n", r"line 1: 'ApplyEyeMakeup/v_a.avi' must be 'CLASS/FILE"),
        ("ApplyEyeMakeup/v_a.avi 1 2\n", "line 1: .*must be 'CLASS/FILE.avi NUMBER'"),
        ("v_a.avi 1\n", "line 1: .*must be 'CLASS/FILE.avi NUMBER'"),
        ("UCF-101/YoYo/v_a.avi 3\n", "line 1: .*must be"),
        ("YoYo/v_a.avi 3\nYoyos/v_b.avi 3\n", "line 2: unknown class 'Yoyos'; .*'YoYo'"),
        ("YoYo/v_a.avi 2\n", "line 1: .*gives number 2, but classInd.txt numbers YoYo 3"),
        ("YoYo/v_a.avi x\n", "line 1: .*gives number x"),
        ("YoYo/v_a.avi 3\n\nYoYo/v_a.avi 3\n", "line 3: 'YoYo/v_a.avi' is listed twice"),
        ("\n", "is empty"),
    ],
)
def test_bad_lines(tmp_path, text, message):
    path = _write(tmp_path / "trainlist01.txt", text)
    with pytest.raises(ValueError, match="trainlist01.txt.*" + message):
        read_split_list(path, CLASSES, labelled=True)


def test_a_number_in_a_test_list_is_malformed(tmp_path):
    path = _write(tmp_path / "testlist01.txt", "YoYo/v_a.avi 3\n")
    with pytest.raises(ValueError, match="line 1: .*must be 'CLASS/FILE.avi'$"):
        read_split_list(path, CLASSES, labelled=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 A\n1 B\n", "line 1: '0 A' must be '1 CLASS'"),
        ("1 A\n3 B\n", "line 2: '3 B' must be '2 CLASS'"),
        ("1 A\n2\n", "line 2: '2' must be '2 CLASS'"),
        ("1 A\n2 A\n", "line 2: class 'A' is listed twice"),
    ],
)
def test_bad_class_index(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_class_index(_write(tmp_path / "classInd.txt", text))


def test_a_video_in_train_and_test(tree):
    with open(tree / "ucfTrainTestlist/testlist02.txt", "a") as file:
        file.write("YoYo/v_YoYo_g22_c01.avi\n")
    with pytest.raises(ValueError, match=r"1 videos are in train_split2 and in test_split2 .*g22"):
        read_ucf101(tree)


@pytest.mark.parametrize("spelled", ["folder", "file", "list"])
def test_upper_and_lower_case_of_handstand_pushups(tree, spelled):
    folder = tree / "UCF-101/HandstandPushups"
    if spelled == "folder":
        folder.rename(tree / "UCF-101/HandStandPushups")
    elif spelled == "file":
        next(folder.iterdir()).rename(folder / "v_HandstandPushups_g08_c01.avi")
    else:
        for path in (tree / "ucfTrainTestlist").glob("t*list0*.txt"):
            path.write_text(path.read_text().replace("HandstandPushups/v", "HandStandPushups/v"))
    official = read_ucf101(tree)
    (entry,) = official.splits[3].entries
    assert entry.label == 1
    location = UCF101.locate(tree, official)[entry.name]
    assert location.missing is None
    assert "with other upper and lower case" in location.remark
    assert (tree / location.path).is_file()


@pytest.mark.parametrize("gone", ["classInd.txt", "trainlist02.txt", "testlist03.txt"])
def test_a_missing_list_is_reported_with_the_layout(tree, gone):
    (tree / "ucfTrainTestlist" / gone).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{gone}\n(.|\n)*UCF-101/ApplyEyeMakeup/v_Apply"):
        read_ucf101(tree)


def test_other_folders(tree, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (tree / "ucfTrainTestlist").rename(elsewhere / "lists")
    (tree / "UCF-101").rename(elsewhere / "videos")
    official = read_ucf101(tree, elsewhere / "lists")
    with pytest.raises(FileNotFoundError, match="no folder of videos"):
        UCF101.locate(tree, official)
    located = UCF101.locate(tree, official, elsewhere / "videos")
    name = "YoYo/v_YoYo_g22_c01.avi"
    assert located[name].path == str(elsewhere / "videos" / name)  # not below the root: absolute
    (elsewhere / "videos").rename(tree / "avi")
    located = UCF101.locate(tree, official, tree / "avi")
    assert located[name].path == f"avi/{name}"
