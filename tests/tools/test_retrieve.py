"""tools/retrieve.py from feature files to table and JSON, against a loop in numpy."""

import hashlib
import importlib.util
import json
import re

import numpy as np
import pytest


@pytest.fixture(scope="module")
def tool(repo):
    spec = importlib.util.spec_from_file_location("retrieve_tool", repo / "tools" / "retrieve.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_table_and_json(tool, files, tmp_path, capsys):
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
    for k in (1, 3, 5):
        line = next(line for line in printed.splitlines() if f"R@{k} " in line)
        values = [content[name][f"R@{k}"] for name in ("centred", "plain")]
        cells = [f"{100 * value:.2f} %" for value in values]
        assert line.split() == f"R@{k} {cells[0]} {cells[1]}".split()
    assert "24 queries" in printed
    assert "60 videos" in printed
    assert "note" not in printed


def test_the_results_have_their_provenance(tool, files, tmp_path):
    query, gallery = files
    out = tmp_path / "r.json"
    assert tool.main(["--query", query, "--bank", gallery, "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    protocol = content["protocol"]
    expected = {
        "kind": "representation",
        "protocol_name": "retrieval",
        "dataset": "ucf101",
        "split": 1,
        "benchmark": {"network": "r3d18"},
        "ks": [1, 5, 10],
        "videos": 24,
        "bank_videos": 60,
        "failures": 1,
        "bank_failures": 1,
        "feature_size": 6,
        "same_file": False,
        "shared_paths": 0,
        "queries_of_unseen_classes": 0,
    }
    assert {name: protocol[name] for name in expected} == expected
    for name, path in (("query", query), ("bank", gallery)):
        with open(path, "rb") as file:
            content_of_file = file.read()
        described = protocol[name]
        assert described["path"] == path
        assert described["sha256"] == hashlib.sha256(content_of_file).hexdigest()
        assert described["bytes"] == len(content_of_file)
        assert described["protocol"]["num_views"] == 30
    assert content["failures"] == [["bad.mp4", "cannot be decoded"]]


def test_one_file_against_itself(tool, files, tmp_path, capsys):
    query, _ = files
    out = tmp_path / "r.json"
    assert tool.main(["--query", query, "--bank", query, "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    for name in ("centred", "plain"):
        for k in (1, 5, 10):
            assert content[name][f"R@{k}"] == recall(query, query, k, name == "centred")
    assert content["plain"]["R@1"] < 1
    assert content["protocol"]["same_file"] is True
    assert content["protocol"]["shared_paths"] == 24
    assert content["protocol"]["benchmark"] is None
    assert "24 of 24 queries are in" in capsys.readouterr().out


def test_neighbours_are_written(tool, files, tmp_path):
    query, gallery = files
    out = tmp_path / "n.npz"
    assert (
        tool.main([*["--query", query, "--bank", gallery, "--ks", "3"], "--neighbours", str(out)])
        == 0
    )
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 9}, r"6 in .*q\.npz, 9 in .*bad\.npz"),
        ({"labels": None}, r"bad\.npz has no 'labels' .*retrieval"),
        ({"labels": np.arange(9)}, r"bad\.npz: 20 rows .*'labels'"),
        ({"features": np.full((20, 6), np.nan)}, r"bad\.npz: 20 of 20 rows.*row 0, v100\.mp4"),
    ],
)
def test_invalid_files_raise_with_their_name(tool, files, tmp_path, capsys, changes, message):
    bad = write(tmp_path / "bad.npz", 5, 20, start=100, **changes)
    assert tool.main(["--query", files[0], "--bank", bad]) == 2
    error = capsys.readouterr().err
    assert error.startswith("retrieve.py: error: ")
    assert len(error.splitlines()) == 1
    assert re.search(message, error), error


def test_invalid_arguments_are_reported(tool, files, tmp_path, capsys):
    query, gallery = files
    pair = ["--query", query, "--bank", gallery]
    for arguments, message in (
        (["--query", query, "--bank", str(tmp_path / "none.npz")], "none.npz"),
        (["--query", str(tmp_path / "none.npz"), "--bank", gallery], "none.npz"),
        ([*pair, "--ks", "0", "1"], "ranks of 1 or more, got (0, 1)"),
        ([*pair, "--block", "0"], "blocks must be 1 row or more"),
        ([*pair, "--json", query], "q.npz is an input"),
        ([*pair, "--neighbours", gallery], "b.npz is an input"),
        ([*pair, "--neighbours", "n.npy"], "writes a .npz file, got n.npy"),
    ):
        assert tool.main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith("retrieve.py: error: ")
        assert message in error
