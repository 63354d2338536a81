"""All protocols together: against a bank, leaving groups out, and refusing what cannot be."""

import pytest
import torch

from sce_video.evaluation import (
    FeatureSet,
    effective_rank,
    fit_linear_probe,
    group_ids,
    judge,
    knn_scores,
    resolve_protocols,
    retrieval_recall,
    top_k_accuracy,
)

CLASSES = 6


def features(count, seed, groups=3, spread=1.5):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(7))
    labels = torch.arange(count) % CLASSES
    noise = torch.randn(count, 5, generator=generator)
    paths = [f"class{i % CLASSES}/person{i // CLASSES % groups}_{i}.mp4" for i in range(count)]
    return FeatureSet(centres[labels] + spread * noise, labels, torch.arange(count), paths)


def test_against_a_bank_each_figure_is_that_of_its_function():
    queries, bank = features(36, 0), features(60, 1)
    metrics = judge(queries, bank, protocols={"knn": {"k": 7}, "linear": {}, "retrieval": {}})
    q, b = queries.features, bank.features
    knn = top_k_accuracy(knn_scores(q, b, bank.labels, k=7), queries.labels)
    linear = top_k_accuracy(fit_linear_probe(b, bank.labels).scores(q), queries.labels)
    expected = {"knn_top1": knn[1], "knn_top5": knn[5]}
    expected |= {"linear_top1": linear[1], "linear_top5": linear[5]}
    for name, centred in (("retrieval", True), ("retrieval_plain", False)):
        recall = retrieval_recall(q, b, queries.labels, bank.labels, centred=centred)
        expected |= {f"{name}_r{k}": value for k, value in recall.items()}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert metrics["linear_mean_class"] == pytest.approx(linear[1])  # classes of equal size
    assert metrics["effective_rank"] == pytest.approx(float(effective_rank(q)))
    assert set(metrics) == {*expected, "linear_mean_class", "feature_std", "effective_rank"}
    assert all(0 <= metrics[name] <= 1 for name in expected)
    assert 1 / CLASSES < metrics["knn_top1"] < 1


def test_leaving_groups_out_is_the_pooled_mean_over_groups():
    mixed = torch.randperm(54, generator=torch.Generator().manual_seed(3))
    data = features(54, 2).subset(mixed)  # groups and classes in no order
    groups, names = group_ids(data.paths, r"person(\d+)")
    assert names == ["0", "1", "2"]
    pooled = judge(data, groups=groups)
    parts = [judge(data.subset(groups == g), data.subset(groups != g)) for g in range(3)]
    for name in ("knn_top1", "linear_top1", "retrieval_r1", "retrieval_plain_r5"):
        assert pooled[name] == pytest.approx(sum(part[name] for part in parts) / 3), name


def test_a_group_does_not_help_itself():
    # Within a person all videos look alike and differ in class: only leaving out is honest.
    count = 24
    person = torch.arange(count) // 4
    x = torch.eye(6)[person] * 10 + torch.randn(count, 6, generator=torch.Generator())
    labels = person % 2
    data = FeatureSet(
        x, labels, torch.arange(count), [f"person{int(p)}/{i}" for i, p in enumerate(person)]
    )
    groups, _ = group_ids(data.paths, r"person(\d+)")
    ids = torch.arange(count)
    itself = knn_scores(x, x, labels, k=3, query_groups=ids, bank_groups=ids)
    assert top_k_accuracy(itself, labels, (1,))[1] == 1.0
    assert judge(data, groups=groups, protocols={"knn": {"k": 3}})["knn_top1"] < 0.8


def test_protocols_are_resolved_or_refused():
    assert set(resolve_protocols()) == {"knn", "linear", "retrieval"}
    assert resolve_protocols({"knn": {"k": 3}}) == {"knn": {"k": 3, "temperature": 0.07}}
    with pytest.raises(ValueError, match=r"unknown protocol: 'kn'; did you mean 'knn'"):
        resolve_protocols({"kn": {}})
    with pytest.raises(ValueError, match="did you mean 'temperature'"):
        resolve_protocols({"knn": {"temprature": 0.1}})
    with pytest.raises(ValueError, match="no protocol"):
        resolve_protocols({})


def test_group_patterns_are_checked():
    assert group_ids(["b1", "a2", "b1"], r"([ab])\d")[0].tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="must have one group, has 0"):
        group_ids(["a"], "a")
    with pytest.raises(ValueError, match="1 of 2 paths, the first is 'x'"):
        group_ids(["a1", "x"], r"a(\d)")
    with pytest.raises(ValueError, match="only the group"):
        group_ids(["a1", "a1"], r"a(\d)")


def test_what_cannot_be_judged_is_named():
    queries, bank = features(12, 0), features(12, 1)
    with pytest.raises(ValueError, match="either a bank or groups"):
        judge(queries)
    with pytest.raises(ValueError, match=r"classes \[5\].*not in the bank"):
        judge(queries, bank.subset(bank.labels < 5))
    unlabelled = FeatureSet(bank.features, bank.labels - 1, bank.indices, bank.paths)
    with pytest.raises(ValueError, match=r"2 of 12 bank videos have none.*class0/person0_0\.mp4"):
        judge(queries, unlabelled)
    other = FeatureSet(torch.randn(12, 9), bank.labels, bank.indices, bank.paths)
    with pytest.raises(ValueError, match="queries have 5 dimensions, the bank 9"):
        judge(queries, other)
