"""The report of bad files and its limit."""

from __future__ import annotations

import json

import pytest

from sce_video.datasets import BadFileReport, TooManyBadFilesError


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_report_lists_each_file_once_with_its_first_error(tmp_path):
    path = tmp_path / "deep" / "bad.jsonl"
    report = BadFileReport(path, num_files=100)
    report.add([])
    assert not path.exists()
    report.add([("b\tc.mp4", "first\nerror"), ("a.mp4", "empty")])
    report.add([("b\tc.mp4", "second error")])
    assert read(path) == [
        {"path": "a.mp4", "count": 1, "error": "empty"},
        {"path": "b\tc.mp4", "count": 2, "error": "first\nerror"},
    ]
    assert [p.name for p in path.parent.iterdir()] == ["bad.jsonl"]  # nothing half-written is left


def test_an_earlier_report_is_continued(tmp_path):
    path = tmp_path / "bad.jsonl"
    BadFileReport(path, num_files=100).add([("a", "x"), ("a", "x"), ("b", "y")])
    again = BadFileReport(path, num_files=100)
    assert len(again) == 2
    again.add([("a", "z"), ("c", "w")])
    assert {e["path"]: (e["count"], e["error"]) for e in read(path)} == {
        "a": (3, "x"), "b": (1, "y"), "c": (1, "w"),
    }  # fmt: skip


def test_limit_counts_distinct_files(tmp_path):
    report = BadFileReport(tmp_path / "bad.jsonl", num_files=40, max_bad_share=0.05)
    report.add([("a", "broken")] * 10)
    report.add([("b", "empty")])  # 2 of 40 is exactly 5 %: allowed
    with pytest.raises(TooManyBadFilesError) as error:
        report.add([("c", "gone")])
    for word in ("3 of 40", "0.05", "a: broken", "b: empty", "c: gone", "bad.jsonl"):
        assert word in str(error.value)
    assert len(read(tmp_path / "bad.jsonl")) == 3  # written before the run stops


def test_wrong_arguments_and_reports(tmp_path):
    with pytest.raises(ValueError, match=r"1\.5"):
        BadFileReport(tmp_path / "x", num_files=3, max_bad_share=1.5)
    with pytest.raises(ValueError, match="num_files"):
        BadFileReport(tmp_path / "x", num_files=0)
    (tmp_path / "x").write_text("no json\n")
    with pytest.raises(ValueError, match="line 1"):
        BadFileReport(tmp_path / "x", num_files=3)


def test_without_a_file(tmp_path):
    report = BadFileReport(None, num_files=10, max_bad_share=0.5)
    report.add([("a", "x")])
    assert len(report) == 1
