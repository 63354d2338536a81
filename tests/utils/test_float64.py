"""Devices on which float64 is fast, and large matrices in blocks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.live_memory import LiveMemory

from sce_video.evaluation import fit_linear_probe
from sce_video.evaluation.functional import linear_probe, neighbours
from sce_video.evaluation.functional.label_free import lidar, rankme
from sce_video.models.losses import effective_rank
from sce_video.utils import tensors
from sce_video.utils.tensors import float64_blocks, float64_device, has_fast_float64


def features(count, size, classes=5):
    """Make correlated features with a mean and three nearly constant dimensions."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    scales = torch.arange(1, size + 1) ** -1.0
    scales[-3:] = 1e-4
    x = torch.randn(count, size, generator=random)
    return (x + torch.randn(classes, size, generator=random)[labels]) * scales + 0.5, labels


def probed(x, labels):
    probe = fit_linear_probe(x, labels, l2_grid=(1e-3, 0.1), seed=1)
    assert probe.validation.keys() == {1e-3, 0.1}
    return torch.cat([probe.weight.flatten(), probe.bias, probe.scores(x).flatten()])


MEASURES = {
    "linear probe": probed,
    "effective rank": lambda x, labels: effective_rank(x),
    "rankme": lambda x, labels: torch.tensor(rankme(x)),
    "lidar": lambda x, labels: torch.tensor(lidar(x, labels)),
}


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize(("count", "size"), [(600, 24), (20, 24)])
def test_blocks_and_the_whole_agree(name, count, size, monkeypatch):
    """Test blocks of 7 rows, which do not divide the samples, and fewer samples than features."""
    x, labels = features(count, size)
    whole = MEASURES[name](x, labels)
    monkeypatch.setattr(tensors, "_BLOCK_VALUES", 7 * size)
    kept = MEASURES[name](x, labels)
    torch.testing.assert_close(kept, whole, rtol=1e-10, atol=1e-10)
    # Values that are standardised again in each pass are bit-identical.
    monkeypatch.setattr(linear_probe, "_KEPT_VALUES", 0)
    assert torch.equal(MEASURES[name](x, labels), kept)


@pytest.mark.parametrize("name", MEASURES)
def test_no_second_copy_of_many_features_is_held(name, monkeypatch):
    """All computations take less memory than the features, which are in float32."""
    x, labels = features(16_000, 64)
    monkeypatch.setattr(tensors, "_BLOCK_VALUES", x.numel() // 64)
    monkeypatch.setattr(neighbours, "ROW_BLOCK", len(x) // 64)
    monkeypatch.setattr(linear_probe, "_KEPT_VALUES", 2**12)
    with LiveMemory(x, labels) as memory:
        MEASURES[name](x, labels)
    assert 0 < memory.peak < 0.6 * x.nbytes


def test_the_memory_that_is_counted():
    x = torch.zeros(1000)
    with LiveMemory(x) as memory:
        y = x.view(10, 100) + 1
        del y
        z = x + 1
        z += 1
        z = (z.double() + 1).sum()
    assert memory.peak == 4000 + 2 * 8000


def test_a_device_that_is_slow_in_float64_begins_in_float32(monkeypatch):
    """The fit continues in float64 to the same minimum, from a nearly exact start."""
    x, labels = features(400, 24)
    evaluate, precisions = linear_probe._Scaled.evaluate, []

    def noted(self, u, v):
        precisions.append(u.dtype)
        return evaluate(self, u, v)

    monkeypatch.setattr(linear_probe._Scaled, "evaluate", noted)
    exact = fit_linear_probe(x, labels)
    only = len(precisions)
    assert {*precisions} == {torch.float64}
    precisions.clear()
    monkeypatch.setattr(linear_probe, "has_fast_float64", lambda device: False)
    probe = fit_linear_probe(x, labels)
    assert probe.l2 == exact.l2 and probe.validation == exact.validation
    assert probe.weight.dtype == torch.float64
    objectives = [
        float(F.cross_entropy(one.scores(x), labels) + one.l2 / 2 * one.weight.square().sum())
        for one in (probe, exact)
    ]
    assert objectives[0] == pytest.approx(objectives[1], abs=1e-7)
    assert precisions[0] == torch.float32 and precisions[-1] == torch.float64
    assert precisions.count(torch.float64) < only / 2


def test_devices(monkeypatch):
    assert float64_device("cpu") == torch.device("cpu")
    assert float64_device("cuda:1") == torch.device("cuda:1")
    assert float64_device(torch.device("mps")) == torch.device("cpu")
    assert has_fast_float64(torch.device("cpu"))
    for capability, fast in {(9, 0): True, (8, 0): True, (7, 5): False, (8, 9): False}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert has_fast_float64(torch.device("cuda")) == fast


def test_blocks_are_all_rows_in_order(monkeypatch):
    monkeypatch.setattr(tensors, "_BLOCK_VALUES", 10)
    x = torch.arange(21.0).reshape(7, 3)
    blocks = [*float64_blocks(x)]
    assert [len(block) for block in blocks] == [3, 3, 1] and blocks[0].dtype == torch.float64
    assert torch.equal(torch.cat(blocks), x.double())
    assert [len(block) for block in float64_blocks(torch.zeros(2, 100))] == [1, 1]
