"""The command fuse-scores: table, JSON file, fused scores and errors."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.run_tool import load

from sce_video.evaluation import load_scores

PROTOCOL = {"dataset": "ucf101", "split": 1, "benchmark": {"network": "r3d18"}}

tool = load("fuse-scores")


def write(path, seed, order=None, classes=10, **changes):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(2, 20, classes))
    logits[:, np.arange(20), np.arange(20) % classes] += 1
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    order = np.arange(20) if order is None else order
    arrays = {
        "scores": probabilities[0][order],
        "one_view_scores": probabilities[1][order],
        "labels": (np.arange(20) % classes)[order],
        "paths": np.array([f"v{i}.mp4" for i in range(20)])[order],
        "protocol": np.array(json.dumps({**PROTOCOL, "size": 112 + seed})),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


@pytest.fixture
def files(tmp_path):
    return [
        write(tmp_path / "a.npz", 0),
        write(tmp_path / "b.npz", 1, np.random.default_rng(9).permutation(20)),
    ]


def fused_by_hand(files, weights, name="scores"):
    total, labels = 0, None
    for file, weight in zip(files, weights, strict=True):
        stored = np.load(file)
        order = np.argsort([int(p[1:-4]) for p in stored["paths"]])
        total = total + weight / sum(weights) * stored[name][order]
        labels = stored["labels"][order]
    return total, labels


def top(scores, labels, k):
    order = np.argsort(-scores, axis=1)[:, :k]
    return float(np.mean([label in row for row, label in zip(order, labels, strict=True)]))


def test_table_json_and_dump(files, tmp_path, capsys):
    out, dump = tmp_path / "f.json", tmp_path / "fused.npz"
    assert tool.main([*files, "--json", str(out), "--out", str(dump), "--weights", "3", "1"]) == 0
    content = json.loads(out.read_text())
    expected, labels = fused_by_hand(files, [3, 1])
    one, _ = fused_by_hand(files, [3, 1], "one_view_scores")
    metrics = content["metrics"]
    for name, scores, k in (
        ("top1", expected, 1),
        ("top5", expected, 5),
        ("one_view_top1", one, 1),
    ):
        assert metrics[name] == pytest.approx(top(scores, labels, k))
    fused, protocol = load_scores(dump)
    np.testing.assert_allclose(fused.scores.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(fused.central.numpy(), one, atol=1e-6)
    assert fused.paths == [f"v{i}.mp4" for i in range(20)]
    assert protocol["kind"] == content["protocol"]["kind"] == "recognition"
    assert (protocol["dataset"], protocol["split"], protocol["videos"]) == ("ucf101", 1, 20)
    assert "size" not in protocol  # they do not agree on it
    assert protocol["benchmark"] is None
    fusion = content["protocol"]["fusion"]
    assert [part["path"] for part in fusion] == files
    assert [part["weight"] for part in fusion] == [3, 1]
    assert [part["protocol"]["size"] for part in fusion] == [112, 113]
    assert fusion[1]["sha256"] == hashlib.sha256(Path(files[1]).read_bytes()).hexdigest()
    row = [line for line in capsys.readouterr().out.splitlines() if "%" in line][-1]
    keys = ("top1", "top5", "mean_class_accuracy", "one_view_top1", "one_view_top5")
    assert row.split() == ["fused", *(w for k in keys for w in (f"{100 * metrics[k]:.2f}", "%"))]
    stored = np.load(files[1])
    assert fusion[1]["metrics"]["top1"] == top(stored["scores"], stored["labels"], 1)


def test_invalid_arguments_are_reported(files, tmp_path, capsys):
    for words, message in (
        (files[:1], "two or more files of scores"),
        ([*files, "--weights", "1"], "--weights must contain a weight for each of the 2 files"),
        ([files[0], str(tmp_path / "none.npz")], "none.npz"),
        ([*files, "--weights", "1", "-1"], "--weights must be at least 0, got -1"),
        ([*files, "--out", files[0]], "a.npz is an input"),
        ([*files, "--out", str(tmp_path / "o.npy")], "--out must end in .npz"),
    ):
        try:
            status = tool.main(words)
        except SystemExit as stopped:  # of argparse
            status = stopped.code
        assert status == 2 and message in capsys.readouterr().err
