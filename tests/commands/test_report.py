"""The command report: the files it writes, its output, and its errors."""

from __future__ import annotations

import pytest
from helpers.results_files import K400, results, write

from sce_video.commands import report


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs/k400/results.json", results({"top1": 0.602}, "linear", K400))
    toy = results({"top1": 0.99}, "linear", K400, changes={"videos": 24})
    write(tmp_path / "runs/toy/results.json", toy)
    write(tmp_path / "runs/toy/broken.json", "{")
    return tmp_path / "runs"


def test_it_writes_both_pages_and_lists_what_is_not_compared(runs, capsys):
    assert report.main(["runs"]) == 0
    out = capsys.readouterr().out
    text = (runs / "report.md").read_text()
    assert "| **60.2** | +0.4 | measured |" in text
    assert "<strong>60.2</strong>" in (runs / "report.html").read_text()
    assert "measured: 1, not run: 100" in out
    assert "not compared: runs/toy/results.json: 24 videos, published" in out
    assert "skipped: runs/toy/broken.json: is not JSON" in out
    assert "written: runs/report.md runs/report.html" in out
    assert report.main(["runs"]) == 0  # again: its own pages are replaced and not read
    assert (runs / "report.md").read_text() == text


def test_where_the_pages_go(runs, capsys):
    for given, written in (
        (["runs", "--out", "there"], {"there/report.html", "there/report.md"}),
        (["runs", "--out", "b.md", "--html", "c/d.html"], {"b.md", "c/d.html"}),
        (["runs/k400/results.json"], {"runs/k400/report.md", "runs/k400/report.html"}),
    ):
        before = {path for path in runs.parent.rglob("*") if path.is_file()}
        assert report.main(given) == 0
        new = {path for path in runs.parent.rglob("*") if path.is_file()} - before
        assert {path.relative_to(runs.parent).as_posix() for path in new} == written
    out = capsys.readouterr().out.splitlines()[-2:]
    assert "measured: 1" in out[0] and "skipped" not in out[0]
