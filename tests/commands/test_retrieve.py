"""The command retrieve: table and JSON file, compared with a loop in numpy."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.run_tool import load

tool = load("retrieve")


def write(path, seed, count, start=0, width=6, classes=5, **changes):
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    arrays = {
        "features": (np.eye(classes, width)[labels] + generator.normal(size=(count, width)) + 1),
        "labels": labels,
        "paths": np.array([f"v{i}.mp4" for i in range(start, start + count)]),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


@pytest.fixture
def files(tmp_path):
    protocol = {
        "dataset": "ucf101",
        "split": 1,
        "benchmark": {"network": "r3d18"},
        "checkpoint": {"path": "c.pth", "sha256": "a" * 64},
        "failures": [["bad.mp4", "cannot be decoded"]],
        "num_views": 30,
    }
    text = np.array(json.dumps(protocol))
    query = write(tmp_path / "q.npz", 0, 24, protocol=text)
    gallery = write(tmp_path / "b.npz", 1, 60, start=100, protocol=text)
    return query, gallery


def recall(query, gallery, k, centred):
    q, b = np.load(query), np.load(gallery)
    x, y = (f["features"].astype(np.float32).astype(float) for f in (q, b))
    if centred:
        x, y = x - x.mean(0), y - y.mean(0)
    hits = 0
    for row, label, path in zip(x, q["labels"], q["paths"], strict=True):
        cosine = y @ row / np.linalg.norm(y, axis=1)
        cosine[b["paths"] == path] = -np.inf
        order = np.argsort(-cosine, kind="stable")[:k]
        hits += bool((b["labels"][order] == label)[np.isfinite(cosine[order])].any())
    return hits / len(x)


def test_table_and_json(files, tmp_path, capsys):
    query, gallery = files
    out = tmp_path / "deep" / "r.json"
    arguments = ["--query", query, "--bank", gallery, "--ks", "5", "1", "3", "--json", str(out)]
    assert tool.main([*arguments, "--block", "5", "--bank-block", "7"]) == 0
    content = json.loads(out.read_text())
    assert out.read_text().endswith("}\n")
    for name, prefix in (("centred", "retrieval"), ("plain", "retrieval_plain")):
        expected = {f"R@{k}": recall(query, gallery, k, name == "centred") for k in (1, 3, 5)}
        assert content[name] == pytest.approx(expected)
        assert list(content[name]) == ["R@1", "R@3", "R@5"]
        for k in (1, 3, 5):
            assert content["metrics"][f"{prefix}_r{k}"] == content[name][f"R@{k}"]
    assert content["centred"] != content["plain"]
    printed = capsys.readouterr().out
    values = [f"{100 * content[name]['R@3']:.2f}" for name in ("centred", "plain")]
    line = next(line for line in printed.splitlines() if "R@3 " in line)
    assert line.split() == ["R@3", values[0], "%", values[1], "%"]
    assert "24 queries" in printed and "60 videos" in printed and "note" not in printed
    protocol = content["protocol"]
    expected = {
        **{"kind": "representation", "protocol_name": "retrieval", "dataset": "ucf101", "split": 1},
        **{"benchmark": {"network": "r3d18"}, "ks": [1, 3, 5], "feature_size": 6},
        **{"videos": 24, "bank_videos": 60, "failures": 1, "bank_failures": 1},
        **{"same_file": False, "shared_paths": 0, "queries_of_unseen_classes": 0},
    }
    assert {name: protocol[name] for name in expected} == expected
    for name, path in (("query", query), ("bank", gallery)):
        described, stored = protocol[name], Path(path).read_bytes()
        assert (described["path"], described["bytes"]) == (path, len(stored))
        assert described["sha256"] == hashlib.sha256(stored).hexdigest()
        assert described["protocol"]["num_views"] == 30
    assert content["failures"] == [["bad.mp4", "cannot be decoded"]]


def test_neighbours_are_written(files, tmp_path):
    query, gallery = files
    out = tmp_path / "n.npz"
    words = ["--query", query, "--bank", gallery, "--ks", "3", "--neighbours", str(out)]
    assert tool.main(words) == 0
    stored, q, b = np.load(out), np.load(query), np.load(gallery)
    assert stored["paths"].tolist() == q["paths"].tolist()
    x = q["features"] / np.linalg.norm(q["features"], axis=1, keepdims=True)
    y = b["features"] / np.linalg.norm(b["features"], axis=1, keepdims=True)
    order = np.argsort(-(x @ y.T), axis=1)[:, :3]
    np.testing.assert_array_equal(stored["plain_indices"], order)
    np.testing.assert_array_equal(stored["plain_hits"], b["labels"][order] == q["labels"][:, None])
    np.testing.assert_allclose(
        stored["plain_similarities"], np.take_along_axis(x @ y.T, order, 1), atol=1e-6
    )
    assert stored["centred_indices"].shape == (24, 3)


def test_invalid_files_and_arguments_are_named(files, tmp_path, capsys):
    query, gallery = files
    pair = ["--query", query, "--bank", gallery]
    cases = [
        (["--query", query, "--bank", str(tmp_path / "none.npz")], r"none\.npz"),
        ([*pair, "--ks", "0", "1"], r"--ks must be at least 1, got 0"),
        ([*pair, "--json", query], r"q\.npz is an input"),
        ([*pair, "--neighbours", "n.npy"], r"--neighbours must end in \.npz, got 'n\.npy'"),
    ]
    for number, (changes, message) in enumerate(
        (
            ({"width": 9}, r"6 in .*q\.npz, 9 in .*bad0\.npz"),
            ({"labels": None}, r"bad1\.npz has no 'labels' .*retrieval"),
            ({"features": np.full((20, 6), np.nan)}, r"20 of 20 rows.*row 0, v100\.mp4"),
        )
    ):
        bad = write(tmp_path / f"bad{number}.npz", 5, 20, start=100, **changes)
        cases.append((["--query", query, "--bank", bad], message))
    for words, message in cases:
        assert tool.main(words) == 2, words
        error = capsys.readouterr().err
        assert error.startswith("file_protocols.py: error: ") and len(error.splitlines()) == 1
        assert re.search(message, error), error
