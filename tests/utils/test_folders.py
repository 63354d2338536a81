"""Searching folders for files."""

from __future__ import annotations

import os

from sce_video.utils.storage import find_files


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_files_of_the_extensions_sorted_without_hidden_ones(tmp_path):
    touch(tmp_path, "b.png", "a/c.PNG", "a/d.jpg", "a/.e.png", ".f/g.png", "a.b/h.png", "png")
    assert find_files(tmp_path, [".png"]) == ["a.b/h.png", "a/c.PNG", "b.png"]
    assert find_files(str(tmp_path), (".jpg", ".png"))[2:] == ["a/d.jpg", "b.png"]
    assert find_files(tmp_path / "none", [".png"]) == []


def test_links_are_followed_and_loops_visited_once(tmp_path):
    touch(tmp_path, "far/a.png", "root/c/b.png")
    os.symlink(tmp_path / "far", tmp_path / "root/d")
    os.symlink(tmp_path / "root", tmp_path / "root/c/loop")
    assert find_files(tmp_path / "root", [".png"]) == ["c/b.png", "d/a.png"]
