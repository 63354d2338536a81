"""Finding files."""

from __future__ import annotations

import pytest

from sce_video.data_tools.prepare.official import list_videos, locate_by_name, relative_to_root


def _touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_listing(tmp_path):
    _touch(tmp_path, "b/x.avi", "a/y.AVI", "z.mp4", "a/notes.txt", ".hidden/x.avi", "a/._y.avi")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "b/loop").symlink_to(tmp_path)
    assert list_videos(tmp_path) == ["a/y.AVI", "b/x.avi", "z.mp4"]


def test_a_link_to_a_folder_elsewhere_is_followed(tmp_path):
    _touch(tmp_path, "disk2/x.avi")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/classes").symlink_to(tmp_path / "disk2")
    assert list_videos(tmp_path / "root") == ["classes/x.avi"]


def test_exact_names_take_precedence(tmp_path):
    _touch(tmp_path, "v/A/x.avi", "v/a/x.avi", "v/B/Y.avi")
    names = ["A/x.avi", "a/x.avi", "b/y.avi", "A/X.avi", "c/z.avi"]
    located = locate_by_name(tmp_path, tmp_path / "v", names)
    assert [(p.path, p.missing, p.remark is not None) for p in located.values()] == [
        ("v/A/x.avi", None, False),
        ("v/a/x.avi", None, False),
        ("v/B/Y.avi", None, True),
        ("v/A/X.avi", "several files differ from it in case only: A/x.avi, a/x.avi", False),
        ("v/c/z.avi", "no such file", False),
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("root/v", "v"), ("root/a/b", "a/b"), ("root", "."), ("root/..name", "..name")],
)
def test_relative(tmp_path, path, expected):
    assert relative_to_root(tmp_path / path, tmp_path / "root") == expected


def test_not_below_the_root_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relative_to_root(tmp_path / "other", tmp_path / "root") == str(tmp_path / "other")
    from pathlib import Path

    assert relative_to_root(Path("other"), Path("root")) == str(tmp_path / "other")
