"""The functions of evaluate, test and finetune-splits: what they hand on, and what they note."""

from __future__ import annotations

import pytest

import sce_video
from sce_video.datasets.video_list import BY_CONTENT
from sce_video.runs import measure
from sce_video.utils.run_files import RUN_JSON


class ReachedError(Exception):
    """The test that a command has prepared."""


@pytest.fixture
def reached(tmp_path, monkeypatch):
    """A function that calls a command up to its test, whose config it returns."""
    monkeypatch.chdir(tmp_path)
    for name in ("videos/a/1.mp4", "videos/b/2.mp4", "run/epoch_1.pth"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def stop(cfg, random=False):
        raise ReachedError(cfg)

    recipe = "sce_r3d18_folder_small"  # in place of the config in the checkpoint
    monkeypatch.setattr("sce_video.inference.stored_test.stored_test", lambda _: recipe)
    monkeypatch.setattr("sce_video.runs.launch.run_test", stop)

    def call(function, *words, **options):
        with pytest.raises(ReachedError) as stopped:
            function(*words, **options)
        return stopped.value.args[0]

    return call


@pytest.mark.parametrize("all_files", [False, True])
def test_all_files_changes_the_datasets_and_no_environment_variable(reached, all_files):
    given = {"test": "videos", "gallery": "videos", "random": True, "all_files": all_files}
    evaluated = reached(sce_video.evaluate, "run", **given)
    given = {"data_root": "videos", "all_files": all_files}
    tested = reached(sce_video.test, "sce_r3d18_folder_small", "random", **given)
    for dataset in (
        evaluated.test_dataloader.dataset,
        evaluated.test_cfg.gallery_dataloader.dataset,
        tested.test_dataloader.dataset,
    ):
        assert dataset.data_root == "videos"
        assert (BY_CONTENT in (dataset.get("extensions") or ())) is all_files


def test_labels_and_changes_of_a_test(reached, tmp_path):
    (tmp_path / "list.txt").write_text("a/1.mp4 0\n")
    (tmp_path / "names.txt").write_text("a\nb\n")
    cfg = reached(
        sce_video.test,
        "sce_r3d18_folder_small",
        "random",
        data_root="videos",
        test_list="list.txt",
        classes="names.txt",
        cfg_options=["test_dataloader.batch_size=3"],
        out="results.json",
    )
    dataset = cfg.test_dataloader.dataset
    assert (dataset.ann_file, dataset.class_file) == ("list.txt", "names.txt")
    assert cfg.test_dataloader.batch_size == 3
    assert cfg.test_cfg.out == str(tmp_path / "results.json")


def test_a_damaged_run_json_is_a_note(tmp_path, capsys):
    """The numbers do not depend on it."""
    assert measure._run_of(tmp_path) is None and not capsys.readouterr().err
    (tmp_path / RUN_JSON).write_text('{"kind": "run"}')
    assert measure._run_of(tmp_path) is None
    said = capsys.readouterr().err
    assert said.startswith("note: ") and "run.json does not describe a run" in said
