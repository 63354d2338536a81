"""Sense of time: altered batches, the metric against the plain metrics, the test loop, files."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.evaluation_fakes import data, runner_of_fakes

from sce_video.data_tools.generated import CLASSES
from sce_video.datasets.loading.batches import collate_views
from sce_video.evaluation import KNN, LinearProbe, Retrieval, Rows, SenseOfTime
from sce_video.evaluation.alterations import ALTERATIONS, alter_batch, frame_order
from sce_video.evaluation.metrics.sense_of_time import class_factors, class_pairs


def clips(samples, views, frames, seed=0):
    """Samples of ``PackClips`` with random frames."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "inputs": [
                torch.randint(0, 256, (frames, 2, 2, 3), generator=generator).to(torch.uint8)
                for _ in range(views)
            ],
            **{"label": i % 3, "index": i, "seed": 1000 + i, "failures": []},
        }
        for i in range(samples)
    ]


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_frames_of_altered_clips(alteration):
    samples = clips(5, views=2, frames=6)
    altered = alter_batch(collate_views(samples), alteration)
    halves = [alter_batch(collate_views(part), alteration) for part in (samples[:2], samples[2:])]
    for i, sample in enumerate(samples):
        for number, view in enumerate(sample["inputs"]):
            order = frame_order(alteration, 6, sample["seed"], number)
            expected = np.stack([view.numpy()[t] for t in order])
            half, row = halves[i >= 2], i if i < 2 else i - 2
            assert np.array_equal(altered["inputs"][number][i], expected)
            assert np.array_equal(half["inputs"][number][row], expected)
    assert altered["label"].tolist() == [0, 1, 2, 0, 1]


def features(count, seed, classes=12, **changes):
    """Rows of C = 7: appearance in dims that no alteration changes, motion in those that do."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    appearance, motion = np.eye(3)[labels // 4], np.eye(4)[labels % 4]

    def rows(with_motion):
        parts = [3 * appearance, 3 * motion if with_motion else np.full((count, 4), 0.75)]
        signal = np.concatenate(parts, axis=1)
        return torch.from_numpy(signal + 0.4 * rng.normal(size=signal.shape)).float()

    given = dict(
        values=rows(True),
        labels=torch.from_numpy(labels),
        indices=torch.arange(count),
        paths=[f"{seed}/person{i // classes}/{i}.mp4" for i in range(count)],
        altered={"shuffled": rows(False), "reversed": rows(True), "still": rows(False)},
    )
    return Rows(**{**given, **changes})


def metric(**options):
    built = SenseOfTime(**options)
    built.dataset_meta = {"classes": CLASSES}
    return built


@pytest.mark.parametrize("grouped", [False, True])
def test_every_combination_is_that_of_the_plain_metrics(grouped):
    queries, gallery = features(24, 1, classes=3), features(30, 2, classes=3)
    if grouped:
        groups = torch.arange(24) // 12
        names = ("still",)
        found = SenseOfTime(names, k=5).compute(replace(queries, groups=groups))
    else:
        names = ALTERATIONS
        found = SenseOfTime(names, k=5).compute(queries, gallery)
    for name in ("unaltered", *names):
        tested = queries.altered.get(name, queries.values)
        if grouped:
            given = replace(queries, values=tested, groups=groups), None
        else:
            trained = gallery.altered.get(name, gallery.values)
            given = replace(queries, values=tested), replace(gallery, values=trained)
        assert found[f"time_knn_{name}"] == KNN(k=5).compute(*given)["knn_top1"]
        assert found[f"time_linear_{name}"] == LinearProbe().compute(*given)["linear_top1"]
        assert found[f"time_retrieval_{name}"] == Retrieval().compute(*given)["retrieval_r1"]
        if not grouped and name != "unaltered":
            given, full = (given[0], gallery), f"{name}_from_unaltered"
            assert found[f"time_knn_{full}"] == KNN(k=5).compute(*given)["knn_top1"]
            assert found[f"time_linear_{full}"] == LinearProbe().compute(*given)["linear_top1"]
            assert found[f"time_retrieval_{full}"] == Retrieval().compute(*given)["retrieval_r1"]
    x, y = queries.values.double().numpy(), queries.altered["still"].double().numpy()
    for prefix, mean in (("", 0), ("centred_", x.mean(0))):
        a, b = x - mean, y - mean
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        assert found[f"time_{prefix}cosine_still"] == pytest.approx(cosine.mean())


def test_pairs_are_reported_apart():
    pairs = [("stripes_bounce", "stripes_circle"), ("rings_shake", "rings_pulse"), ("up", "down")]
    built = metric(pairs=pairs, alterations=["shuffled"])
    queries = features(240, 1)
    found = built.compute(queries, features(240, 2))
    assert found["time_pairs_unaltered"] > 0.95
    assert abs(found["time_pairs_shuffled"] - 0.5) < 0.2
    table = built.details["pairs_of_opposites"]
    assert [entry["classes"] for entry in table] == [list(pair) for pair in pairs[:2]]
    assert table[0]["samples"] == [20, 20]
    mean = np.mean([entry["shuffled_from_unaltered"] for entry in table])
    assert found["time_pairs_shuffled_from_unaltered"] == pytest.approx(mean)
    assert "pairs of opposites" in built.text and set(found) == built.in_text


def test_rows_that_cannot_be_used():
    queries, gallery = features(24, 1), features(48, 2)
    with pytest.raises(ValueError, match="contain no features of shuffled and still clips"):
        kept = {"reversed": queries.altered["reversed"]}
        SenseOfTime().compute(replace(queries, altered=kept), gallery)
    with pytest.raises(ValueError, match=r"have only one class \(\[3\]\)"):
        SenseOfTime().compute(replace(queries, labels=torch.full((24,), 3)), gallery)
    with pytest.raises(ValueError, match="need class names"):
        SenseOfTime(pairs="ssv2").compute(queries, gallery)
    with pytest.raises(ValueError, match="labels contain no pair"):
        metric(pairs="ssv2").compute(queries, gallery)
    with pytest.raises(ValueError, match="every pair of opposite classes lacks samples of a class"):
        metric(pairs=[CLASSES[:2]]).compute(queries.subset(queries.labels != 1), gallery)
    with pytest.raises(
        ValueError, match=r"still clips with shape \(23, 7\) do not belong to the same"
    ):
        replace(queries, altered={"still": torch.zeros(23, 7)})
    with pytest.raises(ValueError, match="need the linear probe"):
        SenseOfTime(measures=["knn"], pairs="ssv2")


def test_the_loop_gives_altered_clips(tmp_path):
    run = runner_of_fakes(
        tmp_path,
        test_dataloader=data(12),
        test_cfg={"type": "MultiViewTestLoop", "gallery_dataloader": data(21)},
        test_evaluator=[{"type": "KNN"}, {"type": "SenseOfTime", "k": 3}],
    )
    metrics = run.test()
    for name in ("shuffled", "reversed"):  # the mean colour does not see the order
        assert metrics[f"time_cosine_{name}"] == pytest.approx(1, abs=1e-6)
        assert metrics[f"time_knn_{name}"] == metrics["time_knn_unaltered"] == 1.0
    assert metrics["time_cosine_still"] < 1 - 1e-6
    settings = json.loads((tmp_path / "results.json").read_text())["protocol"]["protocols"]
    assert settings["sense_of_time"]["alterations"] == list(ALTERATIONS)


def test_pairs_with_both_classes():
    classes = ["Folding something", "Opening something", "Holding something", "Closing something"]
    assert class_pairs(classes, "ssv2") == [(3, 1)]
    named = [("Folding something", "Holding something"), ("Folding something", "Absent")]
    assert class_pairs(classes, named) == [(0, 2)]
    with pytest.raises(ValueError, match="unknown list of opposite classes 'kinetics'"):
        class_pairs(classes, "kinetics")
    with pytest.raises(ValueError, match="two different names"):
        class_pairs(classes, [("up", "up")])


@pytest.mark.parametrize(
    ("classes", "template", "message"),
    [
        (["a_b", "c"], "{appearance}_{motion}", "the class 'c' does not match the template"),
        (["a_b", "a_c"], "{appearance}_{motion}", "all classes have the same appearance"),
        (["a_b"], "{x}_{x}", "different factor names in braces"),
    ],
)
def test_factors_of_class_names(classes, template, message):
    of_label = class_factors(["a_b", "c_b", "a_d"], "{appearance}_{motion}")["motion"]
    assert of_label.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match=message):
        class_factors(classes, template)
