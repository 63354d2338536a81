"""Shuffle-BN: groups, order of the keys, resuming. Two processes: tests/distributed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sce_video.models.modules import TargetEncoder
from sce_video.models.modules.target_encoder import BatchShuffle


def target(splits, norm=True):
    torch.manual_seed(0)
    layers = [nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4) if norm else nn.Identity(), nn.ReLU()]
    return TargetEncoder(nn.Sequential(*layers), nn.Linear(4, 5), splits)


def view(n=12):
    return torch.rand(n, 3, 2, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("splits", [1, 3, 5])
def test_each_group_is_encoded_by_itself_and_keys_keep_their_order(splits):
    """A loop over groups of the permutation that the step gives; group sizes may differ."""
    shuffle, x = BatchShuffle(splits), torch.arange(12.0)[:, None] ** 2
    for step in range(3):
        order = torch.randperm(12, generator=torch.Generator().manual_seed(step)).tolist()
        expected = torch.empty(12, 1)
        for group in range(splits):
            members = [order[p] for p in range(12) if p % splits == group]
            mean = sum(float(x[m]) for m in members) / len(members)
            for member in members:
                expected[member] = x[member] - mean
        found = shuffle(lambda rows: rows - rows.mean(dim=0), x)
        torch.testing.assert_close(found, expected)
        shuffle.advance()


@pytest.mark.parametrize("splits", [1, 4])
def test_without_batch_statistics_keys_are_those_of_no_shuffling(splits):
    x = view()
    torch.testing.assert_close(target(splits, norm=False)(x), target(None, norm=False)(x))
    torch.testing.assert_close(target(splits).eval()(x), target(None).eval()(x))


def test_batch_norm_sees_groups_of_other_samples_in_every_step():
    x, plain = view(), target(None)(view())
    model = target(4)
    first, again = model(x), model(x)
    torch.testing.assert_close(first, again)  # both micro-batches of a step are permuted alike
    model.update(model.backbone, model.projector, 0.9)
    later = model(x)
    assert not torch.allclose(first, plain, atol=1e-3)
    assert not torch.allclose(first, later, atol=1e-3)
    # One group of all samples: BN sees what it sees without shuffling.
    torch.testing.assert_close(target(1)(x), plain)


def test_a_resumed_target_continues_with_the_same_permutations():
    model, x = target(4), view()
    for _ in range(3):
        model.update(model.backbone, model.projector, 0.9)
    resumed = target(4)
    resumed.load_state_dict(model.state_dict())
    for _ in range(2):
        assert torch.equal(model(x), resumed(x))
        for each in (model, resumed):
            each.update(each.backbone, each.projector, 0.9)
    assert int(resumed.state_dict()["shuffle.step"]) == 5


def test_the_global_generator_is_not_used():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    BatchShuffle(2)(lambda rows: rows, torch.rand(4, 1, generator=torch.Generator()))
    assert torch.equal(torch.rand(1), expected)


def test_errors():
    with pytest.raises(ValueError, match="shuffle_bn_splits must be at least 1, or None, got 0"):
        target(0)
    with pytest.raises(ValueError, match="needs as many samples per process, got 3"):
        target(4)(view(3))
