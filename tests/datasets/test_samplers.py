"""Order, seeds, ranks and starts within the epoch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from sce_video.datasets import ResumableSampler, SampleRequest, mix_seed, samplers
from sce_video.registry import DATA_SAMPLERS


def make(monkeypatch, size, rank=0, world=1, **options):
    monkeypatch.setattr(samplers, "get_dist_info", lambda: (rank, world))
    return ResumableSampler(range(size), **options)


def test_an_epoch_has_every_sample_once(monkeypatch):
    sampler = make(monkeypatch, 101, seed=3)
    first = list(sampler)
    assert sorted(r.index for r in first) == list(range(101)) and len(sampler) == 101
    assert all(isinstance(r, SampleRequest) and 0 <= r.seed < 2**63 for r in first)
    assert [r.index for r in first] != list(range(101))
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    assert [r.index for r in second] != [r.index for r in first]
    assert not {r.seed for r in first} & {r.seed for r in second}


def test_order_and_views_follow_from_the_seed_of_the_run_and_the_epoch(monkeypatch):
    seen, orders = set(), set()
    for seed in range(4):
        sampler = make(monkeypatch, 101, seed=seed)
        for epoch in range(4):
            sampler.set_epoch(epoch)
            requests = list(sampler)
            generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
            order = torch.randperm(101, generator=generator).tolist()
            assert requests == [SampleRequest(i, mix_seed(seed, epoch, i)) for i in order]
            seen |= {request.seed for request in requests}
            orders.add(tuple(order))
    assert len(seen) == 16 * 101 and len(orders) == 16


def test_mixed_seeds_are_stable_and_scattered():
    # the published first outputs of SplitMix64 from states 1234567 and 0, without their lowest bit
    assert mix_seed(1234567) == 6457827717110365317 >> 1
    assert mix_seed(0) == 0xE220A8397B1DCDAF >> 1
    assert mix_seed(1, 2, 3) == 7510213797696614745  # must never change: old runs are resumed
    seeds = {mix_seed(b, e, i) for b in range(10) for e in range(10) for i in range(100)}
    assert len(seeds) == 10_000
    ones = [bin(s).count("1") for s in seeds]
    assert 31 < sum(ones) / len(ones) < 32


def test_small_data_sets_are_passed_over_until_the_epoch_is_long_enough(monkeypatch):
    sampler = make(monkeypatch, 10, seed=1, min_samples=25)
    requests = list(sampler)
    assert len(sampler) == len(requests) == 30  # whole passes
    passes = [requests[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(r.index for r in one) == list(range(10)) for one in passes)
    assert len({tuple(r.index for r in one) for one in passes}) == 3  # each in its own order
    assert len({r.seed for r in requests}) == 30  # and with views of its own
    assert passes[0] == list(make(monkeypatch, 10, seed=1))
    assert len(make(monkeypatch, 30, min_samples=25)) == 30  # large enough: one pass

    ranks = [list(make(monkeypatch, 10, r, 3, seed=1, min_samples=25)) for r in range(3)]
    assert sorted(sum(ranks, [])) == sorted(requests)
    sampler.set_start(17)
    assert list(sampler) == requests[17:]


def test_batches_of_all_ranks_together_equal_one_large_batch(monkeypatch):
    one = list(make(monkeypatch, 24, seed=1))
    ranks = [list(make(monkeypatch, 24, r, 3, seed=1)) for r in range(3)]
    for i in range(0, 24 // 3, 4):
        union = [request for rank in ranks for request in rank[i : i + 4]]
        assert sorted(union) == sorted(one[3 * i : 3 * (i + 4)])


def test_round_up_fills_from_the_start(monkeypatch):
    ranks = [list(make(monkeypatch, 7, r, 3, seed=1)) for r in range(3)]
    assert [len(r) for r in ranks] == [3, 3, 3]
    order = [request for step in zip(*ranks, strict=True) for request in step]
    assert order[7:] == order[:2] and order[:7] == list(make(monkeypatch, 7, seed=1))
    loose = [make(monkeypatch, 7, r, 3, seed=1, round_up=False) for r in range(3)]
    assert [len(list(s)) for s in loose] == [len(s) for s in loose] == [3, 2, 2]


def test_another_total_cuts_the_same_order_or_continues_it(monkeypatch):
    whole = list(make(monkeypatch, 7, seed=1))
    sampler, rank = make(monkeypatch, 7, seed=1), make(monkeypatch, 7, 1, 2, seed=1)
    for total, expected in ((6, whole[:6]), (9, whole + whole[:2])):
        sampler.set_total_size(total)
        assert len(sampler) == total and list(sampler) == expected
    rank.set_total_size(6)
    assert list(rank) == whole[1:6:2]
    for total in (0, 7):
        with pytest.raises(ValueError, match="must be a positive multiple of 2"):
            rank.set_total_size(total)


def test_start_in_the_middle_gives_the_rest_once(monkeypatch):
    whole = make(monkeypatch, 20, 1, 2, seed=9)
    whole.set_epoch(4)
    expected = list(whole)
    for calls in (("set_epoch", 4), ("set_start", 6)), (("set_start", 6), ("set_epoch", 4)):
        resumed = make(monkeypatch, 20, 1, 2, seed=9)
        for name, value in calls:
            getattr(resumed, name)(value)
        assert len(resumed) == 10 and list(resumed) == expected[6:]
        resumed.set_epoch(5)
        whole.set_epoch(5)
        assert list(resumed) == list(whole)
    for start, left in ((0, 10), (10, 0)):
        resumed.set_start(start)
        assert len(list(resumed)) == left
    for wrong in (-1, 11):
        with pytest.raises(ValueError, match=str(wrong)):
            resumed.set_start(wrong)


def test_registered_and_empty_refused():
    built = DATA_SAMPLERS.build({"type": "ResumableSampler", "dataset": range(3), "seed": 1})
    built.shuffle = False
    built.set_epoch(7)
    assert list(built) == [SampleRequest(i, mix_seed(1, 7, i)) for i in range(3)]
    with pytest.raises(ValueError, match="empty"):
        ResumableSampler([], seed=0)


class Requests:
    """A data set of the requests themselves, with the worker that got them."""

    def __len__(self):
        return 26

    def __getitem__(self, request):
        return request, getattr(request, "following", None), get_worker_info().id


def test_requests_tell_what_their_worker_gets_two_batches_later(start=8):
    plain = ResumableSampler(range(26), seed=1)
    sampler = ResumableSampler(range(26), seed=1)
    sampler.announce_batches(4, 2)
    assert list(sampler) == list(plain)  # also equal with what follows
    sampler.set_start(start)
    loader = DataLoader(Requests(), 4, sampler=sampler, num_workers=2, collate_fn=list)
    batches = list(loader)
    assert len(batches) == (26 - start + 3) // 4
    for worker in range(2):
        own = [batch for batch in batches if batch[0][2] == worker]
        for batch, later in zip(own, own[2:], strict=False):
            expected = [request for request, _, _ in later]
            assert [following for _, following, _ in batch][: len(later)] == expected
        assert not any(following for batch in own[-2:] for _, following, _ in batch)
