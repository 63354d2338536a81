"""Transfer protocols on feature files: what is fitted on what, and what does not fit together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.run_tool import load

from sce_video.evaluation import Rows, save_features
from sce_video.evaluation.features import load_feature_pair
from sce_video.evaluation.functional.transfer import (
    Labelled,
    low_shot_svm,
    many_shot,
    random_holdout,
)
from sce_video.evaluation.transfer import (
    TransferParts,
    evaluate_low_shot,
    evaluate_many_shot,
    load_transfer_parts,
)


def rows(paths: list[str], labels: list[int], size: int = 3) -> Rows:
    values = torch.rand(len(paths), size, generator=torch.Generator().manual_seed(len(paths)))
    values[:, 0] += torch.tensor(labels)
    return Rows(values, torch.tensor(labels), torch.arange(len(paths)), paths)


def numbered(part: str, count: int) -> Rows:
    return rows([f"{part}/{i}.jpg" for i in range(count)], [i % 2 for i in range(count)])


def test_c_is_chosen_on_a_fifth_of_train_where_there_is_no_official_split():
    train, test = numbered("train", 40), numbered("test", 15)
    labels = {"train": train.labels.numpy(), "test": test.labels.numpy()}
    parts = TransferParts({"train": train, "test": test}, labels, {}, [])
    content = evaluate_many_shot(parts, "mean_class", official_val=False)
    x, y, held = train.values.numpy(), labels["train"], random_holdout(40)
    fitted, chosen = Labelled(x[~held], y[~held]), Labelled(x[held], y[held])
    expected = many_shot(
        fitted, chosen, Labelled(test.values.numpy(), labels["test"]), "mean_class"
    )
    assert content["protocol"]["c"] == expected.c and len(content["protocol"]["validation"]) == 45
    assert content["metrics"]["many_shot_mean_class"] == expected.score
    assert content["protocol"]["validation_split"] == "20 % of train, seed 0"


def test_the_svms_train_on_train_and_val_in_the_order_of_the_images():
    """The images of the two lists alternate, as the numbers of VOC2007 do."""
    parts = {"train": range(0, 20, 2), "val": range(1, 20, 2), "test": range(20, 30)}
    of_part = {name: rows([f"{i:04}" for i in n], [i % 3 for i in n]) for name, n in parts.items()}
    tables = {name: np.eye(3)[one.labels] * 2 - 1 for name, one in of_part.items()}
    found = evaluate_low_shot(TransferParts(of_part, tables, {}, []), (1, None), draws=2)
    order = np.argsort([path for name in ("train", "val") for path in of_part[name].paths])
    x = np.concatenate([of_part[name].values.double().numpy() for name in ("train", "val")])
    y = np.concatenate([tables[name] == 1 for name in ("train", "val")])
    test = of_part["test"].values.double().numpy()
    expected = low_shot_svm(x[order], y[order], test, tables["test"] == 1, (1, None), 2)
    assert found["protocol"]["map_of_draws"] == {"1": expected[1], "full": expected[None]}
    assert found["metrics"]["low_shot_map_1"] == pytest.approx(np.mean(expected[1]))


def test_what_does_not_fit_together(tmp_path, capsys):
    files = {part: str(tmp_path / f"{part}.npz") for part in ("train", "val", "test")}
    for part, count in (("train", 10), ("val", 2), ("test", 5)):
        save_features(files[part], numbered(part, count), {})

    def error(*words: str) -> str:
        given = ["linear", "--train", files["train"], "--test", files["test"], *words]
        assert load("transfer").main(given) == 2
        return capsys.readouterr().err

    needed = "the set has an official validation split: give its features as --val"
    assert needed in error("--set", "dtd")
    refused = "no official validation split: a fifth of --train is held out"
    assert refused in error("--set", "pets", "--val", files["val"])
    out = ("--json", files["test"])
    assert f"{files['test']} is an input and would be overwritten" in error(
        "--metric", "top1", *out
    )
    for changed, message in (
        (rows(["test/0.jpg", "b.jpg"], [0, 1]), "test/0.jpg is in the features of train and of"),
        (rows(["a.jpg", "b.jpg"], [0, -1]), "transfer needs labels, 1 of 2 videos have none"),
        (rows(["a.jpg", "b.jpg"], [0, 1], size=4), "features of different sizes: 3 in"),
    ):
        save_features(files["train"], changed, {})
        assert message in error("--metric", "top1")


def test_provenance_of_two_files(tmp_path):
    """Other metrics on the features are no result of the transfer; checkpoints may differ."""
    stated = {"protocol": "many_shot", "network": "r50_2d"}
    files = {part: str(tmp_path / f"{part}.npz") for part in ("train", "test")}
    for part, file in files.items():
        provenance = {"benchmark": stated, "checkpoint": {"sha256": part * 16}}
        save_features(file, numbered(part, 4), provenance)
    parts = load_transfer_parts({**files, "val": None})
    assert parts.provenance["benchmark"] == stated
    assert "made by different checkpoints" in parts.notes[0] and len(parts.notes) == 1
    pair = load_feature_pair(files["test"], files["train"], "kNN")
    assert pair.provenance["benchmark"] is None
