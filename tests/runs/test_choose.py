"""The command choose from videos to the page, and the command line that it recommends."""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.browser import browser_page, low_contrast
from helpers.tiny_encoder import save_tiny
from helpers.training import make_videos

import sce_video
from sce_video.commands.main import main
from sce_video.options.choose import ChooseOptions
from sce_video.options.command_line import parse
from sce_video.options.features import IndexOptions
from sce_video.options.training import FinetuneOptions, PretrainOptions
from sce_video.reporting.result_files import collect_results
from sce_video.runs.candidate_scores import DECIDES, Decision
from sce_video.runs.candidates import ORDERED_PIXELS, PIXELS, RANDOM_WEIGHTS, Candidate
from sce_video.runs.choose import DATA, PAGE, _next_command
from sce_video.utils import own_parts


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """24 videos of two classes with a CSV file of groups, a broken file, and a tiny run."""
    root = tmp_path_factory.mktemp("choose")
    videos = make_videos(root / "videos", count=24)
    (videos / "class0" / "broken.mp4").write_bytes(b"no video")
    save_tiny(root / "run" / "epoch_1.pth")
    names = sorted(str(path.relative_to(videos)) for path in videos.rglob("v*.mp4"))
    rows = [(name, name.split("/")[0], f"g{i % 6}") for i, name in enumerate(names)]
    with open(root / "clips.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "scene"), *rows])
    return root


@pytest.fixture(scope="module")
def labelled(data):
    return sce_video.choose(
        str(data / "videos"),
        out=data / "labelled",
        among=str(data / "run"),
        labels=str(data / "clips.csv"),
        group_column="scene",
        workers=1,
        device="cpu",
    )


def test_the_table_the_json_file_and_the_recommendation_agree(data, labelled):
    names = {score.candidate.name for score in labelled.scores}
    assert names == {str(data / "run"), PIXELS, ORDERED_PIXELS, RANDOM_WEIGHTS}
    assert labelled.sample == "24 of 24 videos, leaving out one of 6 groups"
    values = [score.metrics[DECIDES] for score in labelled.scores]
    assert values == sorted(values, reverse=True)
    stored = json.loads((data / "labelled" / DATA).read_text())
    assert stored["kind"] == "choose" and stored["request"]["group_column"] == "scene"
    assert [one["name"] for one in stored["candidates"]] == [
        s.candidate.name for s in labelled.scores
    ]
    for one, score in zip(stored["candidates"], labelled.scores, strict=True):
        low, high = one["intervals"][DECIDES]
        assert low <= one["metrics"][DECIDES] == score.metrics[DECIDES] <= high
        assert one["cost"]["seconds"] > 0 and one["cost"]["dimensions"] == score.cost.dimensions
    assert stored["recommended"] == (labelled.recommended and labelled.recommended.name)
    assert stored["command"] == labelled.command and stored["videos"]["used"] == 24
    for line in labelled.table().lines():
        assert len(line.split("  ")) > 4
    # A report of the folder does not take it for the result of a test.
    found = collect_results([str(data / "labelled")])
    assert not found.results and not found.skipped


def test_without_labels_the_table_has_their_measures(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(data)
    words = "choose videos --among run --device cpu --workers 1 --budget 9m --out"
    assert main([*words.split(), str(tmp_path)]) == 1  # a file could not be decoded
    printed = capsys.readouterr().out
    for text in ("RankMe", "LiDAR", "clip retrieval", PIXELS, "s/hour", "24 of 25 videos"):
        assert text in printed
    assert "no measure ranks networks reliably" in printed and "broken.mp4: cannot be" in printed
    assert printed.rstrip().endswith(
        "Use run:\n  sce-video index videos --checkpoint run --out INDEX"
    )
    stored = json.loads((tmp_path / DATA).read_text())
    assert stored["differences"] == [] and stored["best"] is None
    assert len(stored["failures"]) == 1
    page = (tmp_path / PAGE).read_text()
    assert "<h1>Use run</h1>" in page and page.count('class="neighbour-row"') > 6
    assert "broken.mp4" in page


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_in_a_browser(labelled, dark):
    with browser_page(dark=dark) as page:
        page.goto(labelled.page.resolve().as_uri())
        assert page.locator("#candidates tr").count() == 5
        assert page.locator("#differences tr").count() == 1 + 3
        shown = page.locator("pre.command").all_inner_texts()
        assert shown == ([labelled.command] if labelled.command else [])
        assert page.locator("section[id^=neighbours-]").count() == 4
        assert not low_contrast(page)
    with browser_page(width=390) as page:
        page.goto(labelled.page.resolve().as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


OPTIONS = {"finetune": FinetuneOptions, "index": IndexOptions, "pretrain": PretrainOptions}


@pytest.mark.parametrize(
    ("given", "chosen", "command"),
    [
        ({}, "run", "index"),
        ({}, "lite:mean", "index"),
        ({"labels": "folders"}, "lite:mean", "finetune"),
        ({"labels": "folders", "group_pattern": r"p(\d+) "}, "my run", "finetune"),
        ({"labels": "c.csv", "group_column": "a", "fold_column": "b"}, "run", "finetune"),
        ({"labels": "c.csv"}, None, "pretrain"),
        ({"all_files": True}, "run", "index"),
        ({"labels": "-c.csv", "group_pattern": r"-p(\d+)", "all_files": True}, "-run", "finetune"),
        ({"labels": "c.csv", "all_files": True}, None, "pretrain"),
    ],
)
def test_the_recommended_line_is_a_command_line(given, chosen, command):
    options = ChooseOptions(videos="my videos", out="out", **given)
    candidate = None if chosen is None else Candidate(chosen, chosen)
    decision = Decision(None, candidate, ())
    program, name, *words = shlex.split(_next_command(decision, options))
    assert (program, name) == ("sce-video", command)
    parsed = parse(OPTIONS[name], words)
    assert parsed.all_files == options.all_files
    if name == "finetune":
        assert Path(parsed.source) == Path(chosen)
        assert parsed.group_pattern == given.get("group_pattern")
        assert parsed.fold_column == given.get("fold_column")
        assert parsed.data_root == (None if given["labels"] == "folders" else "my videos")
    if name == "pretrain":  # from scratch, also if the weights of a teacher are installed
        assert parsed.method == "simclr"
        assert _next_command(replace(decision, possible=False), options) == ""


def test_the_recommended_line_imports_the_users_own_modules(monkeypatch):
    monkeypatch.setattr(own_parts, "_given", ["my_networks"])
    monkeypatch.setitem(own_parts._imported, "my_networks", set())
    for labels in (None, "folders"):
        options = ChooseOptions(videos="videos", out="out", labels=labels)
        line = _next_command(Decision(None, Candidate("run", "run"), ()), options)
        assert line.endswith(" --import my_networks")


def test_mistakes_are_one_line(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(data)
    for words, message in (
        ("videos --among run --group-column scene", "--group-column divides labelled videos"),
        ("videos --among run --labels folders --fold-column f", "names a column of a CSV file"),
        ("videos --among run --labels folders --folds 3", "--folds divides groups"),
        ("videos --among run --budget soon", "--budget must be a time like 5s"),
        ("videos --among run --budget 0s", "--budget must be above 0"),
        ("nowhere --among run", "there is no folder 'nowhere'"),
        (
            "videos --among run --labels clips.csv --group-column label",
            "has fewer than two classes",
        ),
        ("videos --among run --labels clips.csv --group-column none", "no column 'none'"),
        ("videos --among nothing", "no checkpoint at nothing"),
    ):
        assert main(["choose", *words.split(), "--out", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert line.startswith("sce-video choose: error: ") and message in line
    assert not any(tmp_path.iterdir())


def test_classes_that_cannot_be_compared_are_left_out_and_counted(data, tmp_path):
    """Videos of a class that is in one fold only, in this set."""
    with open(data / "clips.csv", newline="") as file:
        header, *rows = csv.reader(file)
    for row in rows[:2]:
        row[1:] = ["rare", "g0"]
    with open(tmp_path / "clips.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    found = sce_video.choose(
        str(data / "videos"),
        out=tmp_path,
        among=str(data / "run"),
        labels=str(tmp_path / "clips.csv"),
        group_column="scene",
        workers=1,
        device="cpu",
    )
    assert len(found.videos) == 22 and len(np.unique(found.videos.labels)) == 2
    assert any(note.startswith("Left out are 2 videos") for note in found.notes)
