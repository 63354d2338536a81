"""The command probe: metrics from feature files, and errors."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.run_tool import load

from sce_video.evaluation import (
    KNN,
    FeatureStatistics,
    LinearProbe,
    compute_metrics,
    group_ids,
    load_features,
)

tool = load("probe")


def write(path, seed, count, folder, width=5, classes=4, **changes):
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    paths = [f"{folder}/person{i // classes % 3}_{i}.mp4" for i in range(count)]
    arrays = {
        "features": np.eye(classes, width)[labels] + 0.7 * generator.normal(size=(count, width)),
        "labels": labels,
        "paths": np.array(paths),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "test.npz", 0, 24, "test"), write(
        tmp_path / "train.npz", 1, 48, "train"
    )


def test_both_protocols_by_default(files, tmp_path, capsys):
    test, train = files
    out = tmp_path / "p.json"
    arguments = ["--test", test, "--train", train, "--k", "7", "--temperature", "0.2"]
    assert tool.main([*arguments, "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    metrics = content["metrics"]
    queries, gallery = load_features(test)[0], load_features(train)[0]
    expected = compute_metrics(
        [KNN(k=7, temperature=0.2), LinearProbe(), FeatureStatistics()], queries, gallery
    )
    assert metrics == pytest.approx(expected)
    assert 0.25 < metrics["linear_top1"] <= 1
    assert set(metrics) == {
        *(f"{name}_top{k}" for name in ("knn", "linear") for k in (1, 5)),
        "linear_mean_class",
        "feature_std",
        "effective_rank",
    }
    protocol = content["protocol"]
    assert (protocol["kind"], protocol["protocol_name"]) == ("representation", "probe")
    assert protocol["protocols"]["knn"] == {"k": 7, "temperature": 0.2}
    assert protocol["protocols"]["linear"]["seed"] == 0
    assert (protocol["videos"], protocol["bank_videos"]) == (24, 48)
    assert protocol["bank"]["path"] == train
    printed = capsys.readouterr().out
    assert f"{100 * metrics['knn_top1']:.2f} %" in printed and "against 48" in printed


def test_leaving_one_group_out(files, tmp_path, capsys):
    out = tmp_path / "p.json"
    arguments = ["--test", files[0], "--group-pattern", r"person(\d+)", "--protocols", "knn"]
    assert tool.main([*arguments, "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    features, _ = load_features(files[0])
    groups, _ = group_ids(features.paths, r"person(\d+)")
    assert content["metrics"] == pytest.approx(
        compute_metrics([KNN(), FeatureStatistics()], replace(features, groups=groups))
    )
    assert content["protocol"]["groups"] == ["0", "1", "2"] and "bank" not in content["protocol"]
    assert content["protocol"]["group_pattern"] == r"person(\d+)"
    assert "leaving out one of 3 groups" in capsys.readouterr().out


def test_training_on_test_videos_is_refused(files, tmp_path, capsys):
    paths = np.array([*np.load(files[1])["paths"][:-1], "test/person1_7.mp4"])
    leaking = write(tmp_path / "leak.npz", 1, 48, "train", paths=paths)
    assert tool.main(["--test", files[0], "--train", leaking]) == 2
    error = capsys.readouterr().err
    assert "1 of 24 test videos" in error and "--group-pattern" in error
    assert "test/person1_7.mp4" in error


def test_invalid_arguments_are_reported(files, tmp_path, capsys):
    test, pair = ["--test", files[0]], ["--test", files[0], "--train", files[1]]
    for words, message in (
        (test, "either --train or --group-pattern is needed"),
        ([*pair, "--group-pattern", "x"], "either --train"),
        ([*pair, "--protocols", "linear", "--k", "3"], "--k"),
        ([*test, "--group-pattern", "("], "file_protocols.py: error: "),
        ([*test, "--group-pattern", "person"], "must contain one group"),
        (["--test", str(tmp_path / "none.npz"), "--train", files[1]], "none.npz"),
        ([*pair, "--k", "0"], "--k must be at least 1, got 0"),
    ):
        try:
            status = tool.main(words)
        except SystemExit as stopped:  # of argparse
            status = stopped.code
        assert status == 2 and message in capsys.readouterr().err
