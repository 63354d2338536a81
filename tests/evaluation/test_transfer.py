"""Transfer: the classifiers against minimisers of the same objective, what is fitted on what."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.run_tool import load

from sce_video.evaluation import Rows, save_features
from sce_video.evaluation.feature_files import load_feature_pair
from sce_video.evaluation.functional.linear_probe import fit_logistic
from sce_video.evaluation.transfer import (
    Labelled,
    TransferParts,
    all_points_ap,
    eleven_point_ap,
    evaluate_low_shot,
    evaluate_many_shot,
    load_transfer_parts,
    low_shot_svm,
    many_shot,
    mean_average_precision,
    random_holdout,
    svm_scores,
)


def blobs(count: int, classes: int, seed: int) -> Labelled:
    """Points around the corners of a simplex, overlapping."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    features = np.eye(classes, 6)[labels] + rng.normal(0, 0.8, (count, 6))
    return Labelled(features.astype(np.float32), labels)


def accuracy(fit: Labelled, part: Labelled, c: float, classes: int) -> float:
    """Of the minimum of ``C * sum of cross-entropies + |W|^2 / 2``, by torch."""
    x, y = (torch.from_numpy(one.features).double() for one in (fit, part))
    labels = torch.from_numpy(fit.labels)
    weight, bias = fit_logistic(x, labels, classes, 1 / (c * len(labels)))
    return float(((y @ weight + bias).numpy().argmax(axis=1) == part.labels).mean())


@pytest.mark.parametrize("classes", [2, 4])
def test_choice_and_score_equal_those_of_torch(classes):
    """With few iterations needed, both reach the one minimum of the objective."""
    train, val, test = (blobs(n, classes, seed) for seed, n in enumerate((90, 60, 80)))
    grid = (100.0, 1.0, 0.01, 0.0001)
    score, chosen, validation = many_shot(train, val, test, "top1", grid, max_iter=1000)
    expected = {c: accuracy(train, val, c, classes) for c in grid}
    assert validation == pytest.approx(expected)
    assert len(set(expected.values())) > 1
    assert chosen == max(grid, key=lambda c: expected[c])
    both = Labelled(*(np.concatenate(pair) for pair in zip(train, val, strict=True)))
    assert score == pytest.approx(accuracy(both, test, chosen, classes))


def test_the_holdout_is_numpys_shuffle_with_seed_0():
    """The rule of ssl-transfer, with the global generator that it seeds."""
    before = np.random.get_state()
    mask = random_holdout(50)
    assert np.array_equal(before[1], np.random.get_state()[1])
    np.random.seed(0)
    indices = list(range(50))
    np.random.shuffle(indices)
    assert sorted(indices[:10]) == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(test=Labelled(np.full((3, 6), np.nan), np.zeros(3, int))),
            "test: some features are not finite",
        ),
        (
            dict(train=Labelled(np.zeros((3, 6)), np.zeros(3, int))),
            "all training images belong to one class",
        ),
    ],
)
def test_bad_input(change, message):
    parts = dict.fromkeys(("train", "val", "test"), blobs(20, 3, 0))
    with pytest.raises(ValueError, match=message):
        many_shot(**{**parts, **change})


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    """80 unit features of 6 dimensions, and 3 classes of which an image may show several."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 6))
    positives = features[:, :3] + rng.normal(0, 0.7, (80, 3)) > 0.4
    return features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-5), positives


def test_scores_minimise_the_weighted_squared_hinge(data):
    """``|w, b|^2 / 2 + C * sum of weight * max(0, 1 - y f)^2``, the bias penalised too."""
    features, positives = data
    x = torch.cat([torch.from_numpy(features), torch.ones(80, 1)], dim=1)
    y = torch.from_numpy(np.where(positives[:, 0], 1.0, -1.0))
    cost = 0.5 * torch.where(y > 0, 2.0, 1.0)
    w = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        margins = torch.relu(1 - y * (x @ w))
        loss = w.square().sum() / 2 + (cost * margins.square()).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    scores = svm_scores(features, positives, features)
    np.testing.assert_allclose(scores[:, 0], (x @ w).detach().numpy(), atol=5e-3)


def test_full_is_one_training_set_and_k_several(data):
    features, positives = data
    results = low_shot_svm(features, positives, features, positives, (3, 9, None), draws=3)
    assert {k: len(v) for k, v in results.items()} == {3: 3, 9: 3, None: 1}
    assert len(set(results[9])) == 3  # every draw is another one
    scores = svm_scores(features, positives, features)
    expected = mean_average_precision(scores, positives, all_points_ap)
    assert results[None] == [pytest.approx(expected, abs=1e-3)]
    assert np.mean(results[3]) < np.mean(results[9]) < results[None][0]
    assert low_shot_svm(features, positives, features, positives, (9,), 3)[9] == results[9]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        low_shot_svm(features, positives, features, positives, (0,))
    positives[:, 1] = False
    with pytest.raises(ValueError, match="class 1 has no positive training image"):
        svm_scores(features, positives, features)
    with pytest.raises(ValueError, match="none of the 80 images shows class 1"):
        mean_average_precision(scores, positives, all_points_ap)


def test_average_precision_equals_loops_over_both_definitions():
    rng = np.random.default_rng(1)
    scores, positives = rng.normal(size=60), rng.random(60) < 0.3
    found, points = 0, []  # recall and precision, image by image
    for number, index in enumerate(np.argsort(-scores), start=1):
        found += int(positives[index])
        points.append((found / positives.sum(), found / number))
    # 17, 18, ... positives: no recall lies on a tenth but 0 and 1, where rounding would decide.
    eleven = [max(p for r, p in points if r >= i / 10) for i in range(1, 11)]
    # At recall 0 scikit-learn's curve, which is ssl-transfer's, has the precision 1.
    pair = scores[:, None], positives[:, None]
    expected = np.mean([1.0, *eleven])
    assert mean_average_precision(*pair, eleven_point_ap) == pytest.approx(expected)
    area, before = 0.0, 0.0
    for recall in sorted({r for r, _ in points}):
        area += (recall - before) * max(p for r, p in points if r >= recall)
        before = recall
    assert mean_average_precision(*pair, all_points_ap) == pytest.approx(area)


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
    found = evaluate_many_shot(parts, "mean_class", official_val=False)
    x, y, held = train.values.numpy(), labels["train"], random_holdout(40)
    fitted, chosen = Labelled(x[~held], y[~held]), Labelled(x[held], y[held])
    expected = many_shot(
        fitted, chosen, Labelled(test.values.numpy(), labels["test"]), "mean_class"
    )
    score, c, _ = expected
    assert found.protocol["c"] == c and len(found.protocol["validation"]) == 45
    assert found.metrics["many_shot_mean_class"] == score
    assert found.protocol["validation_split"] == "20 % of train, seed 0"


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
    assert found.protocol["map_of_draws"] == {"1": expected[1], "full": expected[None]}
    assert found.metrics["low_shot_map_1"] == pytest.approx(np.mean(expected[1]))


def test_what_does_not_fit_together(tmp_path, capsys):
    files = {part: str(tmp_path / f"{part}.npz") for part in ("train", "val", "test")}
    for part, count in (("train", 10), ("val", 2), ("test", 5)):
        save_features(files[part], numbered(part, count), {})

    def error(*words: str) -> str:
        given = ["linear", "--train", files["train"], "--test", files["test"], *words]
        assert load("transfer").main(given) == 2
        return capsys.readouterr().err

    needed = "the dataset has an official validation split. Give its features as --val"
    assert needed in error("--set", "dtd")
    refused = "no official validation split, so a fifth of --train is held out"
    assert refused in error("--set", "pets", "--val", files["val"])
    out = ("--json", files["test"])
    assert f"{files['test']} is an input and would be overwritten" in error(
        "--metric", "top1", *out
    )
    for changed, message in (
        (rows(["test/0.jpg", "b.jpg"], [0, 1]), "test/0.jpg is in the features of both train and"),
        (rows(["a.jpg", "b.jpg"], [0, -1]), "transfer needs labels, but 1 of 2 videos have none"),
        (rows(["a.jpg", "b.jpg"], [0, 1], size=4), "features have different sizes: 3 in"),
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
