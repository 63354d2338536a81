"""Reading of lists, finding of files, and small training sets."""

from __future__ import annotations

import pytest

from sce_video.data_tools.prepare.official import (
    Downloads,
    Entry,
    OfficialLists,
    Split,
    class_balanced,
    read_lines,
)


def test_text_files_of_all_systems(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbf1 a\r\n\r\n  2 b \n3 \xe9")
    lines = {1: "1 a", 3: "2 b", 4: "3 \udce9"}
    assert read_lines(path) == [(f"{path}, line {n}", text) for n, text in lines.items()]
    with pytest.raises(ValueError, match="is a folder"):
        read_lines(tmp_path)


def _touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_exact_names_take_precedence(tmp_path):
    _touch(tmp_path, "v/A/x.avi", "v/a/x.avi", "v/B/Y.avi")
    names = ["A/x.avi", "a/x.avi", "b/y.avi", "A/X.avi", "c/z.avi"]
    splits = (Split("x.txt", tuple(Entry(name, 0) for name in names)),)
    located = Downloads("", files=("v",)).locate(tmp_path, OfficialLists("x", splits, ()))
    assert [(p.path, p.missing, p.remark is not None) for p in located.values()] == [
        ("v/A/x.avi", None, False),
        ("v/a/x.avi", None, False),
        ("v/B/Y.avi", None, True),
        ("v/A/X.avi", "several files differ from it in case only: A/x.avi, a/x.avi", False),
        ("v/c/z.avi", "no such file", False),
    ]


def test_the_small_sets_are_those_of_the_severe_benchmark():
    """Golden values of the function in its action_recognition/datasets/utils.py."""
    labels = [0, 1, 2] * 9 + [3]
    split = Split("train_split1.txt", tuple(Entry(str(i), n) for i, n in enumerate(labels)), 28)
    small = class_balanced(split, 12)
    assert [int(entry.name) for entry in small.entries] == [18, 6, 15, 7, 4, 10, 26, 5, 11, 27]
    assert (small.list_name, small.published) == ("train_split1_12.txt", None)
    with pytest.raises(ValueError, match="3 samples are fewer than the 4 classes of train_split1"):
        class_balanced(split, 3)
