"""Online evaluation: metrics against their functions, and no effect on training."""

import json
import random

import numpy as np
import pytest
import torch
from helpers.evaluation_fakes import ColourVideos, data, loader, runner_of_fakes

from sce_video.evaluation import extract_features, knn_scores, top_k_accuracy
from sce_video.evaluation.online_evaluation_hook import OnlineEvaluationHook


def runner(work_dir, hooks, epochs=3):
    return runner_of_fakes(
        work_dir,
        train_dataloader={**data(12), "sampler": {"type": "DefaultSampler", "shuffle": True}},
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}},
        custom_hooks=hooks,
        default_hooks={"checkpoint": None},
        visualizer={"type": "Visualizer", "vis_backends": [{"type": "LocalVisBackend"}]},
    )


def hook(**options):
    knn = {"type": "KNN", "k": options.pop("k", 3)}
    knn["temperature"] = options.pop("temperature", 0.07)
    return {
        "type": "OnlineEvaluationHook",
        "gallery": data(21),
        "queries": data(9),
        "metrics": [knn, {"type": "FeatureStatistics"}],
        **options,
    }


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_training_is_bit_identical_with_and_without_the_hook(tmp_path):
    states = []
    for name, hooks in (("without", []), ("with", [hook()])):
        run = runner(tmp_path / name, hooks)
        run.train()
        draws = (torch.rand(1).item(), np.random.rand(), random.random())
        states.append((run.model.state_dict(), draws))
    (plain, plain_draws), (hooked, hooked_draws) = states
    assert plain_draws == hooked_draws
    for name, value in plain.items():
        assert torch.equal(value, hooked[name]), name
    assert plain["backbone.1.num_batches_tracked"] == 9 * 2  # two views per step


def test_metrics_equal_their_functions(tmp_path):
    run = runner(tmp_path, [hook(interval=2, temperature=0.2)], epochs=3)
    run.train()
    written = lines(tmp_path / "online_evaluation.jsonl")
    assert [line["epoch"] for line in written] == [0, 2, 3]  # start, every second, the last
    assert [line["iter"] for line in written] == [0, 6, 9]
    queries = extract_features(run.model, loader(ColourVideos(9)))
    gallery = extract_features(run.model, loader(ColourVideos(21)))
    scores = knn_scores(queries.features, gallery.features, gallery.labels, k=3, temperature=0.2)
    accuracy = top_k_accuracy(scores, queries.labels)
    assert written[-1]["knn_top1"] == pytest.approx(accuracy[1])
    assert written[-1]["knn_top5"] == pytest.approx(accuracy[5])
    assert 0 < written[-1]["feature_std"] < 1.5
    assert 1 <= written[-1]["effective_rank"] <= 8
    assert written[-1]["videos"] == 9
    # The visualizer's backends and the rows of the log receive the same values.
    scalars = [
        json.loads(line)
        for path in tmp_path.glob("*/vis_data/scalars.json")
        for line in path.read_text().splitlines()
        if "evaluation/knn_top1" in line
    ]
    assert [s["evaluation/knn_top1"] for s in scalars] == [line["knn_top1"] for line in written]
    assert [s["step"] for s in scalars] == [0, 6, 9]
    rows = [row for row in lines(tmp_path / "metrics.jsonl") if row["kind"] == "online"]
    assert [row["knn_top1"] for row in rows] == [line["knn_top1"] for line in written]
    assert [(row["iter"], row["epoch"]) for row in rows] == [(0, 0), (6, 2), (9, 3)]


def test_without_queries_the_video_or_its_group_is_excluded(tmp_path):
    gallery = data(12, classes=2)
    for name, pattern in (("itself", None), ("group", r"(person\d+)")):
        options = {"gallery": gallery, "queries": None, "group_pattern": pattern, "k": 1}
        run = runner(tmp_path / name, [hook(**options)], epochs=1)
        run.train()
        features = extract_features(run.model, loader(ColourVideos(12, classes=2)))
        groups = torch.arange(12) if pattern is None else torch.arange(12) // 2
        x = features.features
        scores = knn_scores(x, x, features.labels, k=1, groups=(groups, groups))
        expected = top_k_accuracy(scores, features.labels, (1,))[1]
        assert lines(tmp_path / name / "online_evaluation.jsonl")[-1]["knn_top1"] == expected


def test_a_resumed_run_repeats_no_line_and_a_new_run_keeps_the_old_file(tmp_path):
    path = tmp_path / "online_evaluation.jsonl"
    path.write_text(json.dumps({"epoch": 0, "iter": 0, "knn_top1": 0.5}) + "\n")
    runner(tmp_path, [hook()], epochs=2).train()
    (aside,) = tmp_path.glob("online_evaluation.jsonl.before_*")
    assert lines(aside) == [{"epoch": 0, "iter": 0, "knn_top1": 0.5}]
    whole = lines(path)
    assert [line["iter"] for line in whole] == [0, 3, 6]
    path.write_text(path.read_text() + '{"epoch": 5, "knn_')  # killed while writing
    run = runner(tmp_path, [hook()], epochs=2)
    run._train_loop = run.build_train_loop(run._train_loop)
    run.optim_wrapper = run.build_optim_wrapper(run.optim_wrapper)
    run.train_loop._iter, run.train_loop._epoch = 3, 1
    online = OnlineEvaluationHook(gallery=loader(ColourVideos(6)))
    online.before_train(run)
    assert lines(path) == whole[:2]


def test_a_diverged_network_is_reported(tmp_path):
    run = runner(tmp_path, [hook(evaluate_at_start=False)], epochs=1)
    with torch.no_grad():
        run.model.backbone[0].weight.fill_(float("nan"))
    run.train()
    (line,) = lines(tmp_path / "online_evaluation.jsonl")
    assert "NaN" in line["error"]
    assert "knn_top1" not in line


def test_invalid_settings_raise(tmp_path):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        OnlineEvaluationHook(gallery={}, interval=0)
    with pytest.raises(ValueError, match="Remove either queries or group_pattern"):
        OnlineEvaluationHook(gallery={}, queries={}, group_pattern="(a)")
    with pytest.raises(
        ValueError, match="metrics of features, but TopKAccuracy is a metric of recog"
    ):
        OnlineEvaluationHook(gallery={}, metrics=[{"type": "KNN"}, {"type": "TopKAccuracy"}])
