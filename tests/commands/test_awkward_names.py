"""Folders and patterns that look like numbers, lists or None are passed on unchanged."""

from __future__ import annotations

import importlib
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from sce_video.commands.curate import describe_curation
from sce_video.commands.main import main
from sce_video.curation.curate import CurateResult
from sce_video.curation.write import CurationCounts, CurationReport
from sce_video.find.search_state import SearchState
from sce_video.options.command_line import parse
from sce_video.options.training import FinetuneOptions, TrainOptions, given_settings

NAMES = ["2023", "[x]", "a,b", 'it\'s "a"=b $HOME']


class _ReachedError(Exception):
    pass


@pytest.fixture(params=NAMES)
def folder(request, tmp_path, monkeypatch) -> str:
    """Make a folder with a video, and a list of 'path label', in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    root = Path(request.param)
    contents = {
        root / "v/a.mp4": "",
        root / "list": "v/a.mp4 0\nv/b.mp4 1\n",
        root / "classes": "v\nw\n",
    }
    for path, text in {**contents, Path("run/epoch_1.pth"): ""}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return request.param


@pytest.fixture
def reached(monkeypatch):
    """Return the arguments with which a command line calls a function."""

    def call(words: list[str], function: str) -> tuple[tuple, dict]:
        given: list[tuple[tuple, dict]] = []

        def stop(*args, **kwargs):
            given.append((args, kwargs))
            raise _ReachedError

        with monkeypatch.context() as patch:
            module, _, name = function.rpartition(".")
            patch.setattr(importlib.import_module(module), name, stop)
            with pytest.raises(_ReachedError):
                main(words)
        return given[0]

    return call


def test_evaluate(folder, reached, monkeypatch):
    recipe = "sce_r3d18_folder_small"  # in place of the config in the checkpoint
    monkeypatch.setattr("sce_video.inference.stored_test.stored_test", lambda _: recipe)
    words = ["evaluate", "run", "--random", "--test", folder]
    (cfg,), _ = reached([*words, "--gallery", folder], "sce_video.runs.launch.run_test")
    gallery = cfg.test_cfg.gallery_dataloader
    assert cfg.test_dataloader.dataset.data_root == gallery.dataset.data_root == folder
    pattern = {"[x]": "[x]", "2023": r"(\d+)", "a,b": "(a),(b)"}.get(folder)
    if pattern is not None:
        (cfg,), _ = reached([*words, "--group-pattern", pattern], "sce_video.runs.launch.run_test")
        assert (
            cfg.test_cfg.group_pattern["pattern"] == pattern
            and cfg.test_cfg.gallery_dataloader is None
        )


def test_train_and_test(folder, reached):
    data = ["--data-root", folder, "--classes", f"{folder}/classes"]
    words = ["train", "r3d18_folder", "--pretrained", "random", *data]
    lists = ["--train-list", f"{folder}/list", "--val-list", f"{folder}/list"]
    (cfg, _), _ = reached([*words, *lists], "sce_video.runs.page.train_with_page")
    wanted = {"data_root": folder, "ann_file": f"{folder}/list", "class_file": f"{folder}/classes"}
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        assert {key: loader.dataset[key] for key in wanted} == wanted
    assert cfg.test_dataloader.dataset.data_root != folder
    words = ["test", "sce_r3d18_folder_small", "random", "--data-root", folder]
    (cfg,), _ = reached(words, "sce_video.runs.launch.run_test")
    data = cfg.test_dataloader.dataset
    assert (data.data_root, data.ann_file) == (folder, None)
    words = ["embed", folder, "--config", "sce_r3d18_folder_small", "--checkpoint", "random"]
    (cfg,), _ = reached([*words, "--out", "o.npz"], "sce_video.runs.launch.run_test")
    assert (cfg.test_dataloader.dataset.data_root, cfg.load_from) == (folder, None)


def test_finetune(folder, reached):
    """Folders and CSV files are read under the names that were given."""
    for name in ("v/b.mp4", "w/a.mp4", "w/b.mp4"):
        path = Path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    words = ["finetune", "none", "--train", folder, "--out", "o", "--epochs", "1", "--few", "1"]
    examine = "sce_video.runs.finetune_subject.examine_folder"
    (root, listed, _), _ = reached(words, examine)
    assert root == folder and sorted(listed.labels.tolist()) == [0, 1]
    Path(folder, "t.csv").write_text("v/a.mp4,x\nw/a.mp4,y\n")
    csv = ["--train", f"{folder}/t.csv", "--test", f"{folder}/t.csv", "--data-root", folder]
    (root, listed, _), _ = reached(["finetune", "none", *csv, "--out", "o"], examine)
    assert root == folder and listed.classes == ("x", "y")


@pytest.mark.parametrize(
    ("words", "function", "place"),
    [
        ("pretrain F --out o", "sce_video.runs.plan_pretraining.examine_folder", 0),
        ("embed F --checkpoint R --out o.npz", "sce_video.runs.embed_run.extraction_config", None),
        ("index F --checkpoint R --out o", "sce_video.find.index.build_index", 1),
        ("curate F --checkpoint R --out o", "sce_video.find.index.build_index", 1),
        ("doctor --videos F", "sce_video.runs.machine_checks.examine", None),
        ("predict R F", "sce_video.datasets.sources.list_videos", 0),
        ("repack F o", "sce_video.data_tools.listed_videos.scan_folder", 0),
        ("verify F", "sce_video.data_tools.listed_videos.scan_folder", 0),
        ("import F o.lance", "sce_video.data_tools.listed_videos.scan_folder", 0),
    ],
)
def test_other_commands(words, function, place, folder, reached, monkeypatch):
    monkeypatch.setattr("sce_video.inference.model.load_model", lambda *args: None)
    monkeypatch.setattr("sce_video.inference.stored_test.stored_test", lambda checkpoint: "c.py")
    given = {"F": folder, "R": "run"}
    args, _ = reached([given.get(word, word) for word in words.split()], function)
    assert (args[0].videos if place is None else args[place]) == folder


def test_printed_commands_can_be_pasted(folder):
    """The commands that the search page and curate suggest can be parsed."""
    path = Path(folder).absolute()
    lists = (path / "labels_train.txt", path / "labels_test.txt")
    labels = SimpleNamespace(split=lambda: lists, file=path / "labels.txt")
    segments = SimpleNamespace(classes=lambda: ["a", "b"], file=path / "s.csv")
    state = SimpleNamespace(
        **{
            "_lock": nullcontext(),
            "labels": labels,
            "segments": segments,
            "index": SimpleNamespace(root=str(path)),
        },
        _network=SimpleNamespace(checkpoint=str(path / "epoch_1.pth")),
    )
    command, of_segments = SearchState.write_split(state).commands
    options = parse(FinetuneOptions, shlex.split(of_segments)[2:])
    assert (options.train, options.test) == (str(path / "s.csv"), None)
    assert (options.data_root, options.out) == (str(path), str(path / "s_finetuned"))
    words = shlex.split(command)
    assert words[:2] == ["sce-video", "finetune"]
    options = parse(FinetuneOptions, words[2:])
    assert [options.train, options.test] == [str(file) for file in lists]
    assert (options.source, options.data_root) == (str(path / "epoch_1.pth"), str(path))
    assert options.out == str(path / "labels_finetuned") and not given_settings(options)
    lists = {"keep": str(path / "keep.txt")}
    report = CurationReport(CurationCounts(*[0] * 12), "", lists, [])
    found = SimpleNamespace(
        videos=SimpleNamespace(root=folder),
        options=SimpleNamespace(drop_outliers=False),
        duplicates=SimpleNamespace(unread=[]),
        motion=None,
    )
    result = CurateResult(found, report, page=None)
    words = shlex.split(describe_curation(result, path).splitlines()[-1])
    options = parse(TrainOptions, words[3:])
    assert (options.data_root, options.train_list) == (folder, lists["keep"])
