"""Transfer protocols on feature files: every set from its tree to the metric, by tools/transfer.py.

The features of an image are its mean colour, which tells the classes of the generated trees apart.
"""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.run_tool import load
from helpers.transfer_trees import TREES

from sce_video.data_tools.prepare.lists import PrepareOptions
from sce_video.data_tools.prepare.transfer_sets import prepare_transfer_set
from sce_video.datasets.video_list import read_annotation_list
from sce_video.evaluation import Rows, save_features
from sce_video.evaluation.features import load_feature_pair
from sce_video.evaluation.functional.transfer import (
    Labelled,
    low_shot_svm,
    many_shot,
    random_holdout,
)
from sce_video.evaluation.transfer import load_transfer_parts


def colours(path: Path) -> np.ndarray:
    """(6,) mean and squared mean colour, around 0."""
    mean = cv2.imread(str(path)).mean(axis=(0, 1)) / 128 - 1
    return np.concatenate([mean, mean**2])


def write_features(root: Path, part: str, out: Path, size: int = 6, seen: str = "a" * 64) -> Path:
    """The feature file of a list, with paths as sce-video embed stores them."""
    videos = read_annotation_list(str(root / f"lists/{part}.txt"), "image")
    paths = [str(root / videos.path(i)) for i in range(len(videos))]
    values = torch.tensor(np.stack([colours(Path(path))[:size] for path in paths]))
    labels = torch.from_numpy(videos.labels)
    rows = Rows(values.float(), labels, torch.arange(len(paths)), paths)
    save_features(out / f"{part}.npz", rows, {"checkpoint": {"sha256": seen}})
    return out / f"{part}.npz"


def prepared(name: str, folder: Path) -> tuple[Path, list[str]]:
    """The tree with its lists, and the arguments that name its feature files."""
    root = TREES[name][0](folder / "data")
    prepare_transfer_set(name, PrepareOptions(root=root, check=False))
    arguments = []
    for part in ("train", "val", "test"):
        if (root / f"lists/{part}.txt").exists():
            arguments += [f"--{part}", str(write_features(root, part, folder))]
    return root, arguments


def features_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    stored = np.load(path)
    return stored["features"], stored["labels"]


def test_c_is_chosen_on_a_fifth_of_train_where_there_is_no_official_split(tmp_path):
    _, arguments = prepared("pets", tmp_path)
    out = tmp_path / "results.json"
    assert load("transfer").main(["linear", "--set", "pets", *arguments, "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    features, labels = features_of(tmp_path / "train.npz")
    held = random_holdout(len(labels))
    assert 0 < held.sum() < len(labels)
    expected = many_shot(
        Labelled(features[~held], labels[~held]),
        Labelled(features[held], labels[held]),
        Labelled(*features_of(tmp_path / "test.npz")),
        "mean_class",
    )
    assert content["protocol"]["c"] == expected.c
    assert content["metrics"]["many_shot_mean_class"] == expected.score
    assert len(content["protocol"]["validation"]) == 45


def test_the_svms_train_on_train_and_val_in_the_order_of_the_images(tmp_path, capsys):
    root, arguments = prepared("voc2007", tmp_path)
    out = tmp_path / "results.json"
    words = ["svm", "--labels", str(root / "lists"), *arguments, "--shots", "1", "full"]
    assert load("transfer").main([*words, "--draws", "2", "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    images = {}
    for part in ("train", "val", "test"):
        lines = (root / f"lists/{part}_labels.txt").read_text().splitlines()
        labels = {str(root / p): v.split() for p, _, v in (x.partition("\t") for x in lines)}
        images[part] = [
            (path, colours(Path(path)).astype(np.float32), [word == "1" for word in labels[path]])
            for path in labels
        ]
    train = sorted(images["train"] + images["val"], key=lambda item: item[0])
    arrays = [
        np.array([item[i] for item in rows]) for rows in (train, images["test"]) for i in (1, 2)
    ]
    expected = low_shot_svm(*(a.astype(np.float64) if i % 2 == 0 else a
                              for i, a in enumerate(arrays)), (1, None), 2)  # fmt: skip
    assert content["protocol"]["map_of_draws"] == {
        "1": pytest.approx(expected[1], abs=1e-6),
        "full": pytest.approx(expected[None], abs=1e-6),
    }
    assert content["metrics"]["low_shot_map_1"] == pytest.approx(np.mean(expected[1]), abs=1e-6)
    assert "full: mAP" in capsys.readouterr().out


def rows(paths: list[str], labels: list[int], size: int = 3) -> Rows:
    values = torch.rand(len(paths), size, generator=torch.Generator().manual_seed(len(paths)))
    return Rows(values, torch.tensor(labels), torch.arange(len(paths)), paths)


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    """Feature files of a set of one's own, 10 training and 5 test images."""
    for part, count in (("train", 10), ("test", 5)):
        paths = [f"{part}/{i}.jpg" for i in range(count)]
        save_features(tmp_path / f"{part}.npz", rows(paths, [i % 2 for i in range(count)]), {})
    return {part: str(tmp_path / f"{part}.npz") for part in ("train", "test")}


def run(files: dict[str, str], *words: str) -> int:
    given = [word for part, path in files.items() for word in (f"--{part}", path)]
    return load("transfer").main(["linear", *given, *words])


def test_what_does_not_fit_together(files, tmp_path, capsys):
    def error(*words: str) -> str:
        assert run(files, *words) == 2
        return capsys.readouterr().err

    assert "the set has an official validation split: give its features as --val" in error(
        "--set", "dtd"
    )
    save_features(tmp_path / "val.npz", rows(["val/0.jpg"], [0]), {})
    assert "no official validation split: a fifth of --train is held out" in error(
        "--set", "pets", "--val", str(tmp_path / "val.npz")
    )
    assert f"{files['test']} is an input and would be overwritten" in error(
        "--metric", "top1", "--json", files["test"]
    )
    save_features(tmp_path / "train.npz", rows(["test/0.jpg", "b.jpg"], [0, 1]), {})
    assert "test/0.jpg is in the features of train and of test" in error("--metric", "top1")
    save_features(tmp_path / "train.npz", rows(["a.jpg", "b.jpg"], [0, -1]), {})
    assert "transfer needs labels, 1 of 2 videos have none" in error("--metric", "top1")
    save_features(tmp_path / "train.npz", rows(["a.jpg", "b.jpg"], [0, 1], size=4), {})
    assert "features of different sizes: 3 in" in error("--metric", "top1")


def test_other_metrics_on_the_features_are_no_result_of_the_transfer(tmp_path):
    stated = {"protocol": "many_shot", "network": "r50_2d"}
    files = {}
    for part in ("train", "test"):
        files[part] = str(tmp_path / f"{part}.npz")
        found = rows([f"{part}/{i}.jpg" for i in range(4)], [0, 1, 0, 1])
        save_features(files[part], found, {"benchmark": stated})
    assert load_transfer_parts({**files, "val": None}).provenance["benchmark"] == stated
    pair = load_feature_pair(files["test"], files["train"], "kNN")
    assert pair.provenance["benchmark"] is None
