"""Finding and reading result files, and joining splits."""

from __future__ import annotations

import json
import math
import os

import pytest
from helpers.results_files import K400, results, write

from sce_video.published.paper_results import MEAN_OF_SPLITS
from sce_video.reporting.comparability import compare_with_paper
from sce_video.reporting.result_files import collect_results

CLIPS = "test_dataloader.dataset.pipeline.UniformClips.num_clips"

# -- finding -------------------------------------------------------------------------------


def test_folders_are_searched_and_each_file_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = results({"top1": 0.5}, "linear", K400)
    for name in ("w/b/results.json", "w/a/deep/er/results.json", "w/retrieval.json", "lone.json"):
        write(tmp_path / name, content)
    write(tmp_path / "w/.git/results.json", content)
    for name in ("20260101/vis_data/config", "20261122_021803/20261122_021803", "split_settings"):
        write(tmp_path / f"w/a/{name}.json", {"a": 1})
    write(tmp_path / "w/notes.txt", content)
    os.symlink(tmp_path / "lone.json", tmp_path / "w/again.json")
    found = collect_results(["w", "./w/b", "lone.json"])
    names = [result.name for result in found.results]
    assert names == [
        "w/a/deep/er/results.json",
        "w/again.json",
        "w/b/results.json",
        "w/retrieval.json",
    ]
    assert found.skipped == []
    assert collect_results(["w/notes.txt"]).results[0].metrics == {"top1": 0.5}
    with pytest.raises(FileNotFoundError, match="nowhere"):
        collect_results(["w", "nowhere"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[" * 100000, "not JSON"),
        ("[1, 2]", "no results"),
        ('{"metrics": {"top1": 0.5}}', "no results"),
        ('{"metrics": [1], "protocol": {}}', "no results"),
        ('{"metrics": {"top1": "x", "b": true}, "protocol": {}}', "no number"),
        ('{"kind": "splits", "splits": {}}', "no splits"),
        ('{"kind": "splits", "splits": {"a": {}}}', "'a'"),
        ('{"kind": "splits", "splits": {"1": {}}}', "split 1 has no results"),
    ],
)
def test_files_without_results_are_listed_and_the_rest_is_read(tmp_path, monkeypatch, text, why):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "w/a.json", text)
    write(tmp_path / "w/results.json", results({"top1": 0.5}, "linear", K400))
    found = collect_results(["w"])
    assert [result.name for result in found.results] == ["w/results.json"]
    ((name, reason),) = found.skipped
    assert name == "w/a.json" and why in reason


def test_a_linked_folder_is_not_searched(tmp_path):
    """A link out of the work dirs, or to the disk's root, would be read as results."""
    write(tmp_path / "elsewhere/results.json", results({"top1": 0.5}, "linear", K400))
    (tmp_path / "w").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "w" / "link")
    assert collect_results([tmp_path / "w"]).results == []
    assert len(collect_results([tmp_path / "w" / "link"]).results) == 1


def test_numbers_beyond_all_floats_and_texts_that_cannot_be_written(tmp_path):
    content = results({"top1": 0.5}, "linear", K400, changes={"decoder_version": "av \ud800\x1b"})
    content["metrics"] |= {"large": 10**400, "small": -(10**400), "ink\ud800": 1}
    path = write(tmp_path / "results.json", json.dumps(content))
    (found,) = collect_results([path]).results
    assert found.metrics == {
        "top1": 0.5, "large": math.inf, "small": -math.inf, "ink\\ud800": 1.0
    }  # fmt: skip
    assert found.protocol["decoder_version"] == "av \\ud800\\x1b"
    (tmp_path / os.fsdecode(b"caf\xe9.json")).write_bytes(b"\xff\xfe\x00{")
    for name, why in collect_results([tmp_path]).skipped:
        assert (name + why).encode("utf-8").endswith(b"is not JSON")


# -- splits --------------------------------------------------------------------------------


def split_file(folder, split, top1, **options):
    content = results({"top1": top1, "top5": 0.9}, "finetune", "ucf101", split=split, **options)
    return write(folder / f"split{split}" / "results.json", content)


def splits_json(folder, tops):
    entries = {}
    for split, top1 in tops.items():
        path = f"split{split}/results.json"
        entries[str(split)] = {"metrics": {"top1": top1}, "results": path}
    content = {"kind": "splits", "splits": entries, "mean": {"top1": 0.123}}
    return write(folder / "splits.json", content)


def test_three_splits_become_the_mean_of_their_own_files(tmp_path):
    tops = {1: 0.90, 2: 0.91, 3: 0.95}
    for split, top1 in tops.items():
        split_file(tmp_path / "run", split, top1)
    splits_json(tmp_path / "run", tops)
    (mean,) = collect_results([tmp_path]).results
    assert mean.split == MEAN_OF_SPLITS
    assert mean.metrics == {"top1": pytest.approx(0.92), "top5": pytest.approx(0.9)}
    assert [(part.split, part.metrics["top1"]) for part in mean.parts] == list(tops.items())
    assert compare_with_paper(mean) == compare_with_paper(mean.parts[0])
    assert mean.name.endswith("run/splits.json")


def test_deviations_of_one_split_are_prefixed_and_common_ones_listed_once(tmp_path):
    for split in (1, 2, 3):
        changes = {"videos": 3690, "failures": 6} if split == 3 else {}
        split_file(tmp_path, split, 0.9, changes=changes, tested={CLIPS: 2})
    splits_json(tmp_path, {1: 0.9, 2: 0.9, 3: 0.9})
    (mean,) = collect_results([tmp_path]).results
    assert compare_with_paper(mean).deviations == (
        f"test: {CLIPS}: 2 -> 10",
        "split 3: 6 videos failed",
    )
    split_file(tmp_path, 2, 0.9, changes={"videos": 10})
    (mean,) = collect_results([tmp_path]).results
    assert compare_with_paper(mean).obstacles == ("split 2: 10 videos, published 3,734",)


def test_best_epochs_have_a_mean_of_their_own(tmp_path):
    """The last epochs are the result; those chosen on the test set are shown beside it."""
    selected = {"path": "best.pth", "selected": {"ann_sha256": "a"}}
    changes = {"checkpoint": selected, "epochs": 9, "chosen_on_test": True}
    best = {}
    for split in (1, 2, 3):
        split_file(tmp_path, split, 0.9)
        content = results({"top1": 0.95}, "finetune", "ucf101", split=split, changes=changes)
        path = write(tmp_path / f"split{split}/best.json", content)
        best[str(split)] = {"metrics": content["metrics"], "results": str(path)}
    path = splits_json(tmp_path, {1: 0.9, 2: 0.9, 3: 0.9})
    write(path, {**json.loads(path.read_text()), "best": {"kind": "splits", "splits": best}})
    last, chosen = collect_results([tmp_path]).results
    assert (last.split, chosen.split) == (MEAN_OF_SPLITS, MEAN_OF_SPLITS)
    assert [round(found.metrics["top1"], 2) for found in (last, chosen)] == [0.9, 0.95]
    assert compare_with_paper(last).deviations == () and chosen.name == f"{last.name}, best epochs"
    (deviation,) = compare_with_paper(chosen).deviations
    assert deviation == "best epoch on the test set; the result is the last"
