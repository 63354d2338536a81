"""Finding results, joining splits, and what may stand beside the paper's numbers."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from helpers.results_files import K400, results, write

from sce_video.reporting.paper_results import MEAN_OF_SPLITS
from sce_video.reporting.result_files import (
    Result,
    collect_results,
    compare,
    setting_of_result,
    share_problem,
    views_of,
)


def of(content):
    """The result of one file's content."""
    from sce_video.reporting.result_files import _single

    return _single("x/results.json", content)


def judged(protocol="linear", dataset=K400, metrics=None, **options):
    return compare(of(results(metrics or {"top1": 0.5}, protocol, dataset, **options)))


# -- finding -------------------------------------------------------------------------------


def test_folders_are_searched_and_each_file_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = results({"top1": 0.5}, "linear", K400)
    for name in ("w/b/results.json", "w/a/deep/er/results.json", "w/retrieval.json", "lone.json"):
        write(tmp_path / name, content)
    write(tmp_path / "w/.git/results.json", content)
    write(tmp_path / "w/a/20260101/vis_data/config.json", content)
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
    assert found.foreign == []
    assert collect_results(["w/notes.txt"]).results[0].metrics == {"top1": 0.5}
    with pytest.raises(FileNotFoundError, match="nowhere"):
        collect_results(["w", "nowhere"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no json"),
        ("[" * 100000, "no json"),
        ("[1, 2]", "no results"),
        ('{"metrics": {"top1": 0.5}}', "no results"),
        ('{"metrics": [1], "protocol": {}}', "no results"),
        ('{"metrics": {"top1": "x", "b": true}, "protocol": {}}', "no figure"),
        ('{"kind": "splits", "splits": {}}', "no splits"),
        ('{"kind": "splits", "splits": {"a": {}}}', "'a'"),
        ('{"kind": "splits", "splits": {"1": {}}}', "split 1 has no figures"),
    ],
)
def test_foreign_files_are_named_and_the_rest_is_read(tmp_path, monkeypatch, text, why):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "w/a.json", text)
    write(tmp_path / "w/results.json", results({"top1": 0.5}, "linear", K400))
    found = collect_results(["w"])
    assert [result.name for result in found.results] == ["w/results.json"]
    ((name, reason),) = found.foreign
    assert name == "w/a.json" and why in reason


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00{")
    (tmp_path / os.fsdecode(b"caf\xe9.json")).write_text("{}")
    found = collect_results([tmp_path])
    assert len(found.foreign) == 2
    for name, why in found.foreign:
        (name + why).encode("utf-8")


# -- splits --------------------------------------------------------------------------------


def split_file(folder, split, top1, **options):
    content = results({"top1": top1, "top5": 0.9}, "finetune", "ucf101", split=split, **options)
    return write(folder / f"split{split}" / "results.json", content)


def splits_json(folder, tops, relative=True):
    entries = {}
    for split, top1 in tops.items():
        path = folder / f"split{split}" / "results.json"
        shown = os.path.relpath(path, folder) if relative else str(path)
        entries[str(split)] = {"metrics": {"top1": top1, "top5": 0.9}, "results": shown}
    benchmark = results({}, "finetune", "ucf101")["protocol"]["benchmark"]
    content = {"kind": "splits", "splits": entries, "mean": {"top1": 0.123}, "protocol": benchmark}
    return write(folder / "splits.json", content)


@pytest.mark.parametrize("stated", ["relative", "absolute", "not at all"])
def test_three_splits_are_one_mean_of_their_own_files(tmp_path, stated):
    tops = {1: 0.90, 2: 0.91, 3: 0.95}
    for split, top1 in tops.items():
        split_file(tmp_path / "run", split, top1)
    if stated != "not at all":
        splits_json(tmp_path / "run", tops, relative=stated == "relative")
    (mean,) = collect_results([tmp_path]).results
    assert mean.split == MEAN_OF_SPLITS
    assert mean.metrics == {"top1": pytest.approx(0.92), "top5": pytest.approx(0.9)}
    assert [(part.split, part.metrics["top1"]) for part in mean.parts] == list(tops.items())
    assert compare(mean) == compare(mean.parts[0])
    assert mean.name.endswith("run/splits.json" if stated != "not at all" else "run")


def test_the_file_of_a_split_counts_and_not_what_was_copied_from_it(tmp_path):
    for split in (1, 2, 3):
        split_file(tmp_path, split, 0.9)
    splits_json(tmp_path, {1: 0.9, 2: 0.8, 3: 0.9})
    (mean,) = collect_results([tmp_path]).results
    assert mean.metrics["top1"] == pytest.approx(0.9)
    assert compare(mean).marks == ("split 2 was measured again after splits.json",)


def test_without_the_files_of_the_splits_nobody_knows_how_they_were_tested(tmp_path):
    splits_json(tmp_path, {1: 0.9, 2: 0.8, 3: 0.7})
    (mean,) = collect_results([tmp_path / "splits.json"]).results
    assert mean.metrics["top1"] == pytest.approx(0.8)
    assert setting_of_result(mean) == ("finetune", "ucf101", "r3d18", 8, 224, K400, "sce")
    assert compare(mean).obstacles[0] == "split 1: the number of videos is not stated"


def test_a_summary_alone_says_what_its_splits_were_tested_on(tmp_path):
    """As tools/finetune_splits.py writes it; the folders of the splits are elsewhere."""
    one = results({}, "finetune", "ucf101")["protocol"]
    counts = {"1": 3783, "2": 3734, "3": 3690}
    content = {
        "kind": "splits",
        "splits": {
            split: {"metrics": {"top1": 0.9}, "videos": videos, "results": f"gone{split}.json"}
            for split, videos in counts.items()
        },
        "protocol": {
            **one,
            "split": list(counts),
            "videos": list(counts.values()),
            "failures": 6,
            "checkpoint": [{"path": f"{split}.pth", "sha256": "0"} for split in counts],
        },
    }
    (mean,) = collect_results([write(tmp_path / "splits.json", content)]).results
    found = compare(mean)
    assert found.obstacles == ()
    assert found.marks == ("split 3: 3,690 videos, published 3,696",)
    assert [part.protocol["checkpoint"]["path"] for part in mean.parts] == [
        "1.pth",
        "2.pth",
        "3.pth",
    ]


def test_two_splits_stay_two_results(tmp_path):
    for split in (1, 3):
        split_file(tmp_path, split, 0.9)
    splits_json(tmp_path, {1: 0.9, 3: 0.9})
    found = collect_results([tmp_path]).results
    assert [(result.split, len(result.parts)) for result in found] == [(1, 0), (3, 0)]


@pytest.mark.parametrize("change", ["a second split 1", "another network", "another folder"])
def test_results_that_are_no_three_splits_of_one_recipe_are_not_joined(tmp_path, change):
    for split in (1, 2):
        split_file(tmp_path / "run", split, 0.9)
    if change == "another network":
        split_file(tmp_path / "run", 3, 0.9, network="r3d50")
    elif change == "another folder":
        split_file(tmp_path / "run2", 3, 0.9)
    else:
        split_file(tmp_path / "run", 3, 0.9)
        shutil.copytree(tmp_path / "run/split1", tmp_path / "run/split1_again")
    assert all(not result.parts for result in collect_results([tmp_path]).results)


def test_marks_of_one_split_are_named_and_those_of_all_said_once(tmp_path):
    for split in (1, 2, 3):
        changes = {"clips": 2} | ({"videos": 3690, "failures": 6} if split == 3 else {})
        split_file(tmp_path, split, 0.9, changes=changes)
    (mean,) = collect_results([tmp_path]).results
    assert compare(mean).marks == ("2 x 3 views", "split 3: 6 videos failed")
    split_file(tmp_path, 2, 0.9, changes={"videos": 10})
    (mean,) = collect_results([tmp_path]).results
    assert compare(mean).obstacles == ("split 2: 10 videos, published 3,734",)


# -- comparing -----------------------------------------------------------------------------


def test_a_faithful_result_has_neither_obstacles_nor_marks():
    for options in (
        {},
        {"protocol": "finetune", "dataset": "ucf101", "split": 2},
        {"protocol": "retrieval", "dataset": "hmdb51", "split": 1},
        {"protocol": "finetune", "dataset": "ssv2"},
        {"dataset": "kinetics200", "source": "kinetics200"},
        {"protocol": "supervised", "dataset": "kinetics200", "source": None},
        {"changes": {"crop_size": 256, "epochs": 60, "pretrained": "a.pth"}},
        {"size": 112, "changes": {"test_size": 128}},
        {"changes": {"videos": 19801}},
    ):
        assert judged(**options) == compare(of(results({"a": 1.0}, "linear", K400))), options
        assert judged(**options).obstacles == judged(**options).marks == ()


UCF = {"protocol": "finetune", "dataset": "ucf101", "split": 1}
RETRIEVAL = {"protocol": "retrieval", "dataset": "ucf101", "split": 1}


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        ({"changes": {"videos": 24}}, "24 videos, published 19,800 to 20,000"),
        ({"changes": {"videos": 20001}}, "20,001 videos"),
        ({"changes": {"videos": None}}, "the number of videos is not stated"),
        ({"changes": {"videos": True}}, "the number of videos is not stated"),
        ({**UCF, "changes": {"videos": 3745}}, "3,745 videos, published 3,783"),
        ({**UCF, "changes": {"videos": 3784}}, "3,784 videos, published 3,783"),
        ({**UCF, "changes": {"videos": 3734}}, "3,734 videos, published 3,783"),  # split 2's
        ({**UCF, "changes": {"videos": 3743, "failures": 40}}, "40 of 3,783 videos failed"),
        ({**UCF, "changes": {"dataset": "hmdb51"}}, "measured on hmdb51, meant for ucf101"),
        ({**RETRIEVAL, "changes": {"bank_videos": None}}, "videos searched is not stated"),
        ({**RETRIEVAL, "changes": {"bank_videos": 3783}}, "3,783 videos searched"),
        (
            {**RETRIEVAL, "changes": {"checkpoint": {"path": None, "source": "random init"}}},
            "weights: random init",
        ),
        (
            {
                **RETRIEVAL,
                "changes": {
                    name: {"protocol": {"checkpoint": {"sha256": name}}}
                    for name in ("query", "bank")
                },
            },
            "different checkpoints",
        ),
        ({**UCF, "changes": {"pretrained": "random"}}, "random weights"),
        ({**RETRIEVAL, "changes": {"group_pattern": "g(.*)"}}, "groups"),
        ({"changes": {"fusion": [{}, {}]}}, "fuses the scores of 2 models"),
        ({"changes": {"benchmark": None}}, "no benchmark"),
        ({"changes": {"benchmark": {"protocol": "linear"}}}, "does not state dataset, network"),
    ],
)
def test_what_is_not_comparable(options, obstacle):
    found = judged(**options)
    assert len(found.obstacles) == 1 and obstacle in found.obstacles[0]


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        ({"changes": {"clips": 1, "crops": 1}}, "1 x 1 views"),
        ({"changes": {"clips": 3, "crops": 10}}, "3 x 10 views"),
        ({"protocol": "finetune", "dataset": "ssv2", "changes": {"clips": 10}}, "10 x 1 views"),
        ({"changes": {"clips": None}}, "views not stated"),
        ({"changes": {"crop_size": 224}}, "test crop 224"),
        ({"size": 112, "changes": {"crop_size": 256}}, "test crop 256"),
        ({"changes": {"epochs": 5}}, "5 epochs instead of 60"),
        ({**UCF, "benchmark": {"epochs": 60}}, "60 epochs instead of 200"),
        ({**UCF, "changes": {"videos": 3750}}, "3,750 videos, published 3,783"),
        ({**UCF, "changes": {"videos": 3771, "failures": 12}}, "12 videos failed"),
        ({**UCF, "changes": {"videos": 3782, "failures": [["a", "b"]]}}, "1 video failed"),
        ({**UCF, "changes": {"split": None}}, "split not stated"),
        ({"changes": {"videos": 18500}}, "18,500 videos, published 19,800 to 20,000"),
        ({"dataset": "kinetics200", "changes": {"videos": 9950}}, "9,950 videos, published 4,900"),
        ({**RETRIEVAL, "changes": {"bank_videos": 9500}}, "9,500 videos searched, published 9,537"),
        (
            {**RETRIEVAL, "changes": {"bank_videos": 9535, "bank_failures": 2}},
            "2 failed in the bank",
        ),
        ({**RETRIEVAL, "changes": {"backend": "faiss", "faiss_index": "HNSW32"}}, "faiss HNSW32"),
        ({"protocol": "detection", "dataset": "ava"}, "no published number"),
    ],
)
def test_what_is_marked(options, mark):
    if options.get("changes", {}).get("split", 0) is None:  # the count is split 1's
        options = {**options, "changes": {**options["changes"], "videos": 3783}}
    found = judged(**options)
    assert found.obstacles == () and len(found.marks) == 1 and mark in found.marks[0]


def test_exact_faiss_is_no_mark():
    assert judged(**RETRIEVAL, changes={"backend": "faiss", "faiss_index": "Flat"}).marks == ()


def test_an_unpretrained_run_is_what_the_supervised_row_is_about():
    options = {"protocol": "supervised", "dataset": "kinetics200", "source": None}
    assert judged(**options, changes={"pretrained": "random"}).obstacles == ()


def test_settings():
    content = results(
        {"top1": 0.5}, "finetune", "ucf101", benchmark={"pretraining": "sce_baseline"}
    )
    assert setting_of_result(of(content))[-1] == "sce_baseline"
    content = results({"top1": 0.5}, "supervised", "kinetics200", source=None)
    assert setting_of_result(of(content))[-2:] == (None, None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [(0.5, None), (0, None), (1, None), (59.8, "59.8"), (-0.1, "no share"), (float("nan"), "nan")],
)
def test_shares(value, problem):
    found = share_problem(Result("x", {"top1": value}, {}), ["top1"])
    assert found is None if problem is None else problem in found
    assert share_problem(Result("x", {"top5": 0.5}, {}), ["top1"]) == "has no top1"


def test_names_of_the_detection_metric():
    assert Result("x", {"mAP/overall": 0.2}, {}).metric("mAP") == 0.2
    assert Result("x", {"mAP/overall": 0.2, "mAP": 0.3}, {}).metric("mAP") == 0.3


def test_views_may_stand_with_the_data_set():
    assert views_of({"test": {"clips": 10, "crops": 3}}) == (10, 3)
    assert views_of({"views": 30}) is None
    # features: the crops are known only once a video was decoded
    assert views_of({"views": 30, "clips": 10, "crops": 0, "test": {"clips": 10}}) == (10, 3)
    assert views_of({"clips": 10, "crops": 0}) is None


def test_nan_in_a_file_is_read_and_not_compared(tmp_path):
    text = json.dumps(results({"top1": float("nan")}, "linear", K400))
    (found,) = collect_results([write(tmp_path / "results.json", text)]).results
    assert "nan" in share_problem(found, ["top1"])
