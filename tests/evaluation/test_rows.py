"""Rows of a data set from the rows of batches: order, repeated samples, several rows per sample."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.evaluation_fakes import BoxFrames, box_loader, box_rows

from sce_video.evaluation import collect_rows
from sce_video.evaluation.rows import PartialRows, Rows, check_finite, complete


class Numbered:
    """A data set of N samples with paths and one further column."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def path(self, index):
        return f"{index}.mp4"

    def row_columns(self, indices):
        return {"key": [("film", index) for index in indices]}


@pytest.mark.parametrize(("seed", "several"), [(0, False), (1, True), (2, True)])
def test_complete_equals_a_loop(seed, several):
    """Shuffled and repeated samples in batches; sample 7 is reported as unreadable."""
    generator = torch.Generator().manual_seed(seed)
    order = [i for i in torch.randperm(20, generator=generator).tolist() if i != 7]
    order += order[:4]  # as a padding sampler repeats
    expected, partial = {}, PartialRows(failures=[("7.mp4", "no stream")] * 2)
    for start in range(0, len(order), 5):
        batch = order[start : start + 5]
        counts = [
            int(torch.randint(0, 4, (), generator=generator)) if several else 1 for _ in batch
        ]
        values = torch.rand(sum(counts), 3, generator=generator)
        parts = values.split(counts)
        for index, part in zip(batch, parts, strict=True):
            expected.setdefault(index, part)
        rows = PartialRows(
            values=[values] if len(values) else [],
            central=[-values] if len(values) else [],
            counts=counts if several else [],
            labels=[index % 3 for index in batch],
            indices=batch,
            num_views=2,
        )
        partial.add(rows)
    rows = complete(partial, Numbered(20))
    indices = sorted(expected)
    assert rows.indices.tolist() == indices and rows.labels.tolist() == [i % 3 for i in indices]
    assert rows.paths == [f"{i}.mp4" for i in indices]
    assert rows.columns["key"] == [("film", i) for i in indices]
    assert torch.equal(rows.values, torch.cat([expected[i] for i in indices]))
    assert torch.equal(rows.central, -rows.values)
    if several:
        assert rows.counts.tolist() == [len(expected[i]) for i in indices]
    assert rows.failures == [("7.mp4", "no stream")] and rows.num_views == 2


def test_a_sample_that_is_neither_computed_nor_reported_raises():
    one = PartialRows(values=[torch.ones(2, 1)], labels=[0, 0], indices=[0, 2])
    with pytest.raises(RuntimeError, match=r"2 of 3 videos were evaluated and 0 reported"):
        complete(one, Numbered(3))
    one.failures = [("2.mp4", "no stream")]  # another sample than the missing one
    with pytest.raises(RuntimeError, match=r"2 of 3 videos were evaluated and 1 reported"):
        complete(one, Numbered(3))
    one.failures = [("1.mp4", "no stream")]
    assert complete(one, Numbered(3)).indices.tolist() == [0, 2]
    with pytest.raises(RuntimeError, match="0 of 3 videos"):
        complete(PartialRows(failures=[(f"{i}.mp4", "no stream") for i in range(3)]), Numbered(3))


def test_rows_that_are_not_finite_name_their_sample():
    values = torch.ones(6, 2)
    counts = torch.tensor([2, 0, 4])
    several = Rows(values, torch.zeros(3), torch.arange(3), ["a", "b", "c"], counts=counts)
    check_finite(several)
    values[3, 1] = float("inf")
    with pytest.raises(ValueError, match=r"output for c is not finite \(1 of 6 rows\)"):
        check_finite(several)
    one = Rows(torch.ones(3, 2), torch.zeros(3), torch.arange(3), ["a", "b", "c"])
    check_finite(one)
    with pytest.raises(ValueError, match=r"output for b is not finite"):
        check_finite(replace(one, altered={"still": torch.tensor([[1.0, 1], [1, np.nan], [1, 1]])}))


def test_rows_of_boxes_equal_a_loop_over_key_frames():
    """Key frames without boxes, a batch without any box, and unreadable key frames."""
    dataset = BoxFrames(13, broken={4, 9})
    rows = collect_rows(torch.nn.Identity(), box_loader(dataset, 2), box_rows)
    read = [i for i in range(13) if i not in (4, 9)]
    assert rows.indices.tolist() == read
    assert rows.counts.tolist() == [len(dataset.boxes(i)) for i in read]
    assert 0 in rows.counts.tolist()
    assert torch.equal(rows.values, torch.cat([dataset.boxes(i) * 2 for i in read]))
    assert rows.columns["key"] == [dataset.key(i) for i in read]
    assert [path for path, _ in rows.failures] == ["film4.mp4", "film9.mp4"]
