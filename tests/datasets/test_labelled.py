"""Labelled sets as users have them: folders, lists, CSV files; what is wrong with them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sce_video.datasets import VideoDataset
from sce_video.datasets.labelled import GroupColumns, read_groups, read_labelled, read_pair


def touch(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def content(found) -> dict[str, str]:
    labels = found.videos.labels.tolist()
    return {path: found.name(label) for path, label in zip(found.paths(), labels, strict=True)}


@pytest.fixture
def folder(tmp_path):
    videos = [f"{name}/{i}.mp4" for name, count in (("a", 5), ("b", 3)) for i in range(count)]
    return touch(tmp_path / "v", *videos)


WANTED = {"a/0.mp4": "run", "b c.mp4": "walk 2", "a,1.mp4": "run"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.csv", 'Path,Label\na/0.mp4,run\nb c.mp4,walk 2\n"a,1.mp4",run\n'),
        ("x.csv", '\ufeffid;class;file\n1;run;a/0.mp4\n2;walk 2;b c.mp4\n3;run;"a,1.mp4"\n'),
        ("x.csv", 'a/0.mp4, run\n\nb c.mp4,walk 2 \n"a,1.mp4",run\n'),
        ("x.tsv", "video\tx\tlabel\na/0.mp4\t1\trun\nb c.mp4\t2\twalk 2\na,1.mp4\t\trun\n"),
    ],
)
def test_csv_files_have_a_header_or_two_columns(tmp_path, name, text):
    touch(tmp_path, "a/0.mp4")
    (tmp_path / name).write_text(text)
    found = read_labelled(str(tmp_path / name))
    assert content(found) == WANTED and found.num_classes == 2
    assert found.root == str(tmp_path) and found.listed


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("slowfast.csv", "a/0.mp4 3\nb c.mp4 0\n", "utf-8"),
        ("list.csv", "a/0.mp4\t3\nb c.mp4\t0\n", "utf-8"),
        ("header.csv", "path\tlabel\na/0.mp4\t3\nb c.mp4\t0\n", "utf-8"),
        ("unicode.txt", "a/0.mp4\t3\nb c.mp4\t0\n", "utf-16"),
        ("unicode.csv", "path\tlabel\r\na/0.mp4\t3\r\nb c.mp4\t0\r\n", "utf-16-be"),
        ("dots.csv", "path,label\n./a/0.mp4,3\nb c.mp4,0\n", "utf-8"),
    ],
)
def test_lists_of_other_tools(tmp_path, name, text, encoding):
    touch(tmp_path, "a/0.mp4", "b c.mp4")
    mark = "\ufeff" if encoding.endswith("be") else ""
    (tmp_path / name).write_bytes((mark + text).encode(encoding))
    found = read_labelled(str(tmp_path / name))
    paths = [os.path.normpath(path) for path in found.paths()]
    labels = [found.name(label) for label in found.videos.labels.tolist()]
    assert (paths, labels) == (["a/0.mp4", "b c.mp4"], ["3", "0"])
    assert [found.where(i).rpartition(" ")[2] for i in (0, 1)] == (
        ["2", "3"] if text.startswith("path") else ["1", "2"]
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "path,label\nrun\\a.mp4,run\njump\\b.mp4,jump\n", "backslashes, as on Windows"),
        ("x.txt", "run\\a.mp4 0\njump\\b.mp4 1\n", "backslashes, as on Windows"),
        (
            "x.txt",
            "run/a.mp4 run\njump/b.mp4 jump\n",
            "'run' is not a label, because a list contains only whole numbers",
        ),
        (
            "x.txt",
            "path label\nrun/a.mp4 0\n",
            "line 1: 'path label' is a header, but lists have no",
        ),
        ("x.txt", "run/a.mp4,0\n", r"columns path and label, rename it to \.csv"),
    ],
)
def test_lists_that_look_like_something_else_get_advice(tmp_path, name, text, message):
    touch(tmp_path, "run/a.mp4", "jump/b.mp4")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_labelled(str(tmp_path / name))
    if name == "x.txt":
        with pytest.raises(ValueError, match=message):
            VideoDataset(str(tmp_path), str(tmp_path / name))


def test_a_video_with_two_labels_is_mentioned(tmp_path):
    touch(tmp_path, "a.mp4", "b.mp4")
    rows = ["a.mp4,run", "b.mp4,jump", "a.mp4,run", f"{tmp_path}/a.mp4,jump", "./b.mp4,jump"]
    (tmp_path / "x.csv").write_text("\n".join(["path,label", *rows, ""]))
    found = read_labelled(str(tmp_path / "x.csv"))
    assert found.repeated() == [
        f"3 rows of {found.source} repeat a video or segment, 1 of them with a different label",
        f"  a.mp4: 'run' ({found.source}, line 2) and 'jump' ({found.source}, line 5)",
    ]
    (tmp_path / "x.csv").write_text("path,label\na.mp4,run\nb.mp4,jump\n")
    assert read_labelled(str(tmp_path / "x.csv")).repeated() == []


CLIPS = "path,label,group,fold\na.mp4,run,ann,2\nb.mp4,run,bob,10\nc.mp4,jump,ann,2\n"


def test_groups_and_folds_are_columns(tmp_path):
    touch(tmp_path, "a.mp4")
    (tmp_path / "clips.csv").write_text(CLIPS)
    source = str(tmp_path / "clips.csv")
    plain = read_labelled(source)
    assert (plain.groups, plain.folds) == ((), ()) and plain.groups_file(tmp_path, "x") is None
    found = read_labelled(source, columns=GroupColumns("group", "fold"))
    assert found.repeated() == []
    torn = source.replace("clips", "torn")
    (tmp_path / "torn.csv").write_text(CLIPS + "d.mp4,jump,ann,10\n")
    (said,) = read_labelled(torn, columns=GroupColumns("group", "fold")).repeated()
    assert said.startswith(f"1 groups of {torn} are in several folds")
    assert found.groups == ("ann", "bob", "ann") and found.folds == ("2", "10", "2")
    assert found.subset(np.array([1])).groups == ("bob",)
    for name, columns, groups in (
        ("x", GroupColumns("group", "fold"), ["ann", "bob", "ann"]),
        ("y", GroupColumns(fold="fold"), []),
    ):
        written = read_labelled(source, columns=columns)
        written.dataset(tmp_path, name)
        assert read_groups(written.groups_file(tmp_path, name), 3) == (groups, ["2", "10", "2"])
    # Without a value the first fold, of which 2 comes before 10.
    assert found.in_fold(GroupColumns(fold="fold")).tolist() == [True, False, True]
    assert found.in_fold(GroupColumns(fold="fold=10")).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="has the folds 2, 10, of which '3' cannot be held out"):
        found.in_fold(GroupColumns(fold="fold=3"))


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        (
            "c.csv",
            CLIPS,
            GroupColumns("person"),
            r"no column 'person'. Its first line is path, label",
        ),
        (
            "c.csv",
            CLIPS.replace("ann,2", ",2"),
            GroupColumns("group"),
            r"line 2: .* 'group'",
        ),
        ("c.txt", "a.mp4 1\n", GroupColumns("group"), "'group' names a column of a CSV file, but"),
        ("c.csv", "a.mp4,1\nb.mp4,2\n", GroupColumns("group"), "has no column 'group'"),
    ],
)
def test_columns_that_are_not_there(tmp_path, name, text, columns, message):
    touch(tmp_path, "a.mp4")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_labelled(str(tmp_path / name), columns=columns)
    with pytest.raises(ValueError, match="names a column of a CSV file"):
        read_labelled(str(tmp_path), columns=columns)


def test_numbers_of_a_csv_file_are_in_their_order(tmp_path):
    (tmp_path / "x.csv").write_text("".join(f"{i}.mp4,{i}\n" for i in (10, 2, 1)))
    found = read_labelled(str(touch(tmp_path, "10.mp4") / "x.csv"))
    assert found.videos.classes == ("1", "2", "10") and found.videos.labels.tolist() == [2, 1, 0]


def test_lists_have_the_classes_of_the_search_page(folder, tmp_path):
    (tmp_path / "labels_classes.txt").write_text("walk\nrun fast\n")
    for name in ("labels.txt", "labels_train.txt", "labels_test.txt", "other.txt"):
        (tmp_path / name).write_text("a/0.mp4 1\nb/0.mp4 0\n")
        found = read_labelled(str(tmp_path / name), str(folder))
        named = {"a/0.mp4": "run fast", "b/0.mp4": "walk"}
        assert content(found) == ({"a/0.mp4": "1", "b/0.mp4": "0"} if name[0] == "o" else named)
    with pytest.raises(ValueError, match=r"none of the first 2 videos .* --data-root"):
        read_labelled(str(tmp_path / "labels.txt"))


@pytest.mark.parametrize("seed", range(3))
def test_few_are_drawn_by_the_seed_and_read_by_the_data_set(folder, tmp_path, seed):
    found = read_labelled(str(folder))
    few = found.few(2, seed)
    drawn = content(few)
    assert Counter(drawn.values()) == {"a": 2, "b": 2} and drawn.items() <= content(found).items()
    assert content(found.few(2, seed)) == drawn
    assert {tuple(content(found.few(2, s))) for s in range(9)} > {tuple(drawn)}
    dataset = VideoDataset(**few.dataset(tmp_path / "out", "train"))
    assert [dataset.path(i) for i in range(4)] == [os.path.join(folder, p) for p in few.paths()]
    assert dataset.labels.tolist() == few.videos.labels.tolist()
    assert dataset.metainfo["classes"] == ("a", "b")
    whole = VideoDataset(**found.dataset(tmp_path, "train"))  # needs no list
    assert len(whole) == 8 and not (tmp_path / "train.txt").exists()
    with pytest.raises(
        ValueError, match=r"--few 4 is too many.* has only 3 videos of the class 'b'"
    ):
        found.few(4, seed)


def test_names_that_no_list_holds(tmp_path):
    found = read_labelled(str(touch(tmp_path / "v", "a/x\ny.mp4", "a/z.mp4", "b/z.mp4")))
    assert len(VideoDataset(**found.dataset(tmp_path, "train"))) == 3
    with pytest.raises(ValueError, match=r"a list cannot contain the name 'a/x\\ny.mp4'"):
        found.subset(np.arange(3)).dataset(tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "path,kind\na.mp4,run\n", "has no column label. Its first line is 'path,kind'"),
        ("x.csv", "name,label\na.mp4,run\n", "has no column path"),
        ("x.csv", "a.mp4\nb.mp4\n", "has no column path"),
        ("x.csv", "path,label\na.mp4,run\nb.mp4,\n", "line 3: the path or the label is missing"),
        ("x.csv", "path,label\na.mp4,run\nb.mp4\n", "line 3: the path or the label is missing"),
        ("x.csv", "path,label\n", "contains a header but no videos"),
        ("x.csv", "", "is empty"),
        ("x.csv", "path,label\na.mp4,run\n", "has 1 class, but a classifier needs two"),
        ("x.csv", "path,label\n" + "a" * 200_000 + ",run\n", "is not a line of a CSV file"),
        ("x.txt", "a.mp4\nb.mp4\n", "has no classes, but a classifier needs two"),
        ("x.txt", "a.mp4 0\na.mp4 0\n", "has 1 class, but a classifier needs two"),
        ("none", None, "there is no folder, list or CSV file"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, text, message):
    touch(tmp_path, "a.mp4")
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_labelled(str(tmp_path / name))


def test_folders_that_cannot_be_used(tmp_path):
    for number, (paths, message) in enumerate(
        {
            ("a/0.mp4", "b.mp4"): "'b.mp4' of .* has no label .1 of 2 videos.",
            ("a.mp4", "b.mp4"): "has no classes",
            ("a/0.mp4", "a/1.mp4"): "has 1 class, but a classifier",
        }.items()
    ):
        with pytest.raises(ValueError, match=message):
            read_labelled(str(touch(tmp_path / str(number), *paths)))
    with pytest.raises(ValueError, match="is a folder, but --data-root belongs to a list"):
        read_labelled(str(tmp_path), ".")


def test_both_sets_have_the_same_classes(folder, tmp_path):
    other = touch(tmp_path / "o", "a/0.mp4", "c/0.mp4")
    with pytest.raises(ValueError, match=r"only in the first 'b', only in the second 'c'"):
        read_pair(str(folder), str(other))
    (tmp_path / "t.csv").write_text("o/a/0.mp4,b\no/c/0.mp4,a\n")
    first, second = read_pair(str(folder), str(tmp_path / "t.csv"), str(tmp_path))
    assert content(second) == {"o/a/0.mp4": "b", "o/c/0.mp4": "a"}
    assert first.videos.classes == second.videos.classes
    for name, labels in (("1.txt", (0, 1)), ("2.txt", (0, 2))):
        lines = [f"o/a/0.mp4 {labels[0]}\n", f"o/c/0.mp4 {labels[1]}\n"]
        (tmp_path / name).write_text("".join(lines))
    with pytest.raises(ValueError, match=r"differ: only in the first '1', only in the second '2'"):
        read_pair(str(tmp_path / "1.txt"), str(tmp_path / "2.txt"))
    assert read_pair(str(folder), None)[1] is None
