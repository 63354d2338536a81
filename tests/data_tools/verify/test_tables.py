"""Tables and summaries of problems."""

from __future__ import annotations

import os

from helpers import verification_fakes as fakes

from sce_video.data_tools.verify import Problem, describe_problems, write_table

PROBLEMS = [
    Problem("bad", "x/a b.mp4", 3, "is empty (0 bytes)", {}),
    Problem("short", "tab\there|.mp4", None, "7 frames", {**fakes.GOOD, "frames": 7}),
]


def test_tables(tmp_path):
    write_table(tmp_path / "t.tsv", PROBLEMS)
    rows = [line.split("\t") for line in (tmp_path / "t.tsv").read_text().splitlines()]
    assert rows == [
        ["problem", "path", "line", "detail", "frames", "seconds", "container", "codec"],
        ["bad", "x/a b.mp4", "3", "is empty (0 bytes)", "", "", "", ""],
        ["short", "tab\\there|.mp4", "", "7 frames", "7", "4.000", "mov", "h264"],
    ]
    write_table(tmp_path / "t.md", PROBLEMS)
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert len(lines) == 4 and "tab\\there\\|.mp4" in lines[3]
    write_table(tmp_path / "t.tsv", [])
    assert len((tmp_path / "t.tsv").read_text().splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["t.md", "t.tsv"]


def test_paths_that_are_not_utf8(tmp_path):
    """The table keeps their bytes; the summary shows replacement characters."""
    problem = Problem("bad", os.fsdecode(b"caf\xe9.mp4"), 1, "broken", {})
    write_table(tmp_path / "t.tsv", [problem])
    assert b"\tcaf\xe9.mp4\t" in (tmp_path / "t.tsv").read_bytes()
    assert "caf\ufffd.mp4: broken" in describe_problems([problem], 1).encode("utf-8").decode()


def test_summary():
    assert describe_problems([], 7) == "7 files, no problems"
    many = [Problem("bad", f"{i}.mp4", i, "broken", {}) for i in range(8)]
    text = describe_problems([*many, Problem("short", "1.mp4", 1, "3 frames", {})], 10, examples=2)
    assert text.splitlines() == [
        "10 files, 2 good, 8 with problems:",
        "  bad: 8 (cannot be opened, are truncated or damaged, or take too long)",
        "    0.mp4: broken",
        "    1.mp4: broken",
        "    ... and 6 more",
        "  short: 1 (too short)",
        "    1.mp4: 3 frames",
    ]
