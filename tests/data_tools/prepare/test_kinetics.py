"""Kinetics-400's csv files and the CVD Foundation's folders, by hand; K200 from it."""

from __future__ import annotations

import pytest

from sce_video.data_tools.prepare.kinetics import (
    K200_CLASSES,
    add_k200,
    locate_kinetics,
    read_class_list,
    read_kinetics400,
)
from sce_video.data_tools.prepare.official import Entry

HEADER = "label,youtube_id,time_start,time_end,split"
ROWS = """\
zumba,aaaaaaaaaaa,3,13,train
"petting animal (not cat)",-b_bbbbbbbb,0,10,train
abseiling,ccccccccccc,417,427,train
zumba,ddddddddddd,20,30,train
"""
VAL_ROWS = "abseiling,eeeeeeeeeee,7,17,val\nzumba,fffffffffff,8,18,val\n"
CLASSES = ("abseiling", "petting animal (not cat)", "zumba")
A = "train/aaaaaaaaaaa_000003_000013.mp4"
B = "train/-b_bbbbbbbb_000000_000010.mp4"
C = "train/ccccccccccc_000417_000427.mp4"
D = "train/ddddddddddd_000020_000030.mp4"
E = "val/eeeeeeeeeee_000007_000017.mp4"
F = "val/fffffffffff_000008_000018.mp4"


def _write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def tree(tmp_path):
    _write(tmp_path / "annotations/train.csv", f"{HEADER}\n{ROWS}")
    _write(tmp_path / "annotations/val.csv", f"{HEADER}\n{VAL_ROWS}")
    for name in (A, B, C, D, E, F):
        _write(tmp_path / name)
    return tmp_path


def test_the_official_files(tree):
    official = read_kinetics400(tree)
    train, val = official.splits
    assert train.entries == (Entry(A, 2), Entry(B, 1), Entry(C, 0), Entry(D, 2))
    assert val.entries == (Entry(E, 0), Entry(F, 2))
    assert [(s.list_name, s.published, s.published_files) for s in (train, val)] == [
        ("k400_train.txt", 246534, 240258),
        ("k400_val.txt", 19906, 19881),
    ]
    (class_map,) = official.class_maps
    assert (class_map.file_name, class_map.names) == ("k400_classes.txt", CLASSES)
    assert class_map.published == 400
    located = locate_kinetics(tree, official)
    assert [p.path for p in located.values()] == list(located) == [A, B, C, D, E, F]
    assert not any(location.missing or location.remark for location in located.values())
    with pytest.raises(FileNotFoundError, match="no test csv file"):
        read_kinetics400(tree, parts=("train", "val", "test"))
    _write(tree / "annotations/test.csv", f"{HEADER}\nzumba,ggggggggggg,8,18,test\n")
    test = read_kinetics400(tree, parts=("train", "val", "test")).splits[2]
    assert (test.list_name, test.published) == ("k400_test.txt", 39805)
    assert test.entries == (Entry("test/ggggggggggg_000008_000018.mp4", 2),)


def test_other_paths_and_names_of_the_csv_files(tree):
    expected = read_kinetics400(tree)
    # One more column, as the CVD Foundation has it, and DeepMind's name and mark for validation.
    text = "".join(f"{line},0\n" for line in VAL_ROWS.replace(",val", ",validate").splitlines())
    (tree / "annotations/train.csv").rename(tree / "train.csv")
    (tree / "annotations/val.csv").unlink()
    _write(tree / "validate.csv", f"{HEADER},is_cc\n{text}")
    assert read_kinetics400(tree) == expected
    (tree / "csv").mkdir()
    for name in ("train.csv", "validate.csv"):
        (tree / name).rename(tree / "csv" / name)
    assert read_kinetics400(tree, tree / "csv") == expected


def test_videos_in_sub_folders_and_by_class(tree):
    official = read_kinetics400(tree)
    moves = {
        A: "train/part_0/aaaaaaaaaaa_000003_000013.mp4",
        B: "train/petting animal (not cat)/-b_bbbbbbbb_000000_000010.mp4",
        E: "val/a/b/eeeeeeeeeee_000007_000017.mp4",
    }
    for old, new in moves.items():
        (tree / new).parent.mkdir(parents=True)
        (tree / old).rename(tree / new)
    located = locate_kinetics(tree, official)
    for old, new in moves.items():
        assert (located[old].path, located[old].missing) == (new, None)
    # As arrange_by_classes.py leaves it.
    (tree / "videos").mkdir()
    for part in ("train", "val"):
        (tree / part).rename(tree / "videos" / part)
    located = locate_kinetics(tree, official)
    assert located[A].path == f"videos/{moves[A]}"
    (tree / "videos").rename(tree / "mine")
    with pytest.raises(FileNotFoundError, match=r"no folder of train videos(.|\n)*replacement"):
        locate_kinetics(tree, official)
    assert locate_kinetics(tree, official, tree / "mine")[E].path == f"mine/{moves[E]}"


def test_replacements_take_precedence(tree):
    folder = "replacement/replacement_for_corrupted_k400"
    _write(tree / folder / "aaaaaaaaaaa_000003_000013.mp4")
    _write(tree / folder / "ccccccccccc_000000_000010.mp4")  # by its id, at any seconds
    (tree / C).unlink()
    located = locate_kinetics(tree, read_kinetics400(tree))
    assert located[A].path == f"{folder}/aaaaaaaaaaa_000003_000013.mp4"
    assert located[C].path == f"{folder}/ccccccccccc_000000_000010.mp4"
    assert "replacements" in located[A].remark
    assert located[B].path == B


def test_a_clip_of_other_seconds_is_missing(tree):
    (tree / A).rename(tree / "train/aaaaaaaaaaa_000004_000014.mp4")
    (tree / B).unlink()
    (tree / E).rename(tree / E.replace("val/", "train/"))  # in the wrong folder
    located = locate_kinetics(tree, read_kinetics400(tree))
    assert located[A].missing == "only train/aaaaaaaaaaa_000004_000014.mp4, at other seconds"
    assert located[A].path == A
    assert located[B].missing == located[E].missing == "no such file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "youtube_id,time_start\nx,1\n",
            f"the column 'label' is missing. The header must be {HEADER}",
        ),
        (f"{HEADER}\nzumba,aaaaaaaaaaa,3,13\n", "line 2 has 4 columns, but the header has 5"),
        (f"{HEADER}\nzumba,#NAME?,3,13,train\n", "line 2: youtube_id '#NAME[?]' does not have 11"),
        (
            f"{HEADER}\nzumba,aaaaaaaaaaa,3,13,val\n",
            "line 2: split 'val' does not belong in the file of the split",
        ),
        (
            f"{HEADER}\n\nzumba,aaaaaaaaaaa,3,13,train\nzumba,aaaaaaaaaaa,3,13,train\n",
            "line 4: 'train/aaaaaaaaaaa_000003_000013.mp4' is listed twice",
        ),
    ],
)
def test_bad_csv(tmp_path, text, message):
    _write(tmp_path / "train.csv", text)
    with pytest.raises(ValueError, match="train.csv.*" + message):
        read_kinetics400(tmp_path, parts=["train"])


def test_unknown_classes_and_clips_in_two_parts(tree):
    path = tree / "annotations/val.csv"
    text = path.read_text()
    path.write_text(text + "Zumbas,ggggggggggg,8,18,val\n")
    with pytest.raises(ValueError, match=r"val.csv, line 4: unknown class 'Zumbas'; .*'zumba'"):
        read_kinetics400(tree)
    path.write_text(text + "zumba,aaaaaaaaaaa,3,13,val\n")
    with pytest.raises(ValueError, match=r"1 videos are in k400_train and in k400_val .*aaaaaaa"):
        read_kinetics400(tree)


# -- K200 ------------------------------------------------------------------------------------


def test_the_bundled_classes():
    assert len(K200_CLASSES) == 200 and sorted(set(K200_CLASSES)) == list(K200_CLASSES)
    assert "massaging person's head" not in K200_CLASSES  # of K400, but not of K200


def test_k200_by_classes(tree):
    official = add_k200(read_kinetics400(tree), ["zumba", "abseiling"])
    by_name = {split.list_name: split for split in official.splits}
    assert list(by_name) == ["k400_train.txt", "k400_val.txt", "k200_train.txt", "k200_val.txt"]
    # Labels of sorted names, whatever the order of the list: abseiling 0, zumba 1.
    assert by_name["k200_train.txt"].entries == (Entry(A, 1), Entry(C, 0), Entry(D, 1))
    assert by_name["k200_val.txt"].entries == (Entry(E, 0), Entry(F, 1))
    assert by_name["k200_train.txt"].published is None
    assert official.class_maps[1].names == ("abseiling", "zumba")
    assert official.class_maps[1].file_name == "k200_classes.txt"
    assert official.class_maps[1].published == 200
    assert "all videos of its classes" in official.notes[-1]
    assert official.names() == [A, B, C, D, E, F]  # no video is counted twice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ddddddddddd\nddddddddddd\n", "line 2: 'ddddddddddd' is listed twice"),
        ("xxxxxxxxxxx\n", "line 1: id 'xxxxxxxxxxx' is unknown"),
        ("-b_bbbbbbbb\n", "line 1: id '-b_bbbbbbbb' is of a class that is not in K200"),
        (None, "no list of ids"),
    ],
)
def test_bad_ids(tree, text, message):
    ids = {"train": tree / "ids.txt", "val": _write(tree / "val_ids.txt", "fffffffffff\n")}
    if text is not None:
        _write(ids["train"], text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        add_k200(read_kinetics400(tree), ["zumba", "abseiling"], ids)


def test_class_lists(tmp_path):
    path = tmp_path / "k.txt"
    _write(path, "# my classes\nzumba\n\npetting animal (not cat)\n")
    assert read_class_list(path, CLASSES) == ("zumba", "petting animal (not cat)")
    for text, message in (
        ("zumba\nAbseilings\n", r"k.txt, line 2: 'Abseilings' is not a class .*'abseiling'"),
        ("zumba\nzumba\n", "k.txt, line 2: 'zumba' is listed twice"),
    ):
        with pytest.raises(ValueError, match=message):
            read_class_list(_write(path, text), CLASSES)
