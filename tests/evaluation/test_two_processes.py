"""Two gloo processes give the rows and metrics of one process, every sample once."""

import json
import logging
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from helpers.evaluation_fakes import (
    BoxFrames,
    ColourVideos,
    TinyEncoder,
    box_loader,
    box_rows,
    loader,
)
from helpers.live_memory import LiveMemory
from helpers.run_tool import run_gloo
from mmengine.dataset import DefaultSampler
from mmengine.model import MMDistributedDataParallel

from sce_video.evaluation import (
    OnlineEvaluationHook,
    collect_rows,
    extract_features,
    knn_scores,
    top_k_accuracy,
)
from sce_video.models.losses import effective_rank

#: Name: videos, and what the sampler does with an uneven number.
SETS = {
    "odd": (ColourVideos(7), False),
    "padded": (ColourVideos(7), True),
    "single": (ColourVideos(1), False),
    "skip": (ColourVideos(7, broken={1, 4}, on_error="skip"), False),
}


def split(dataset, round_up=False, make=loader):
    """A loader of this rank's samples."""
    sampler = DefaultSampler(dataset, shuffle=False, round_up=round_up, seed=0)
    return make(dataset, 2, sampler=sampler)


def described(rows):
    if rows is None:  # on rank 1
        return None
    columns = rows.columns.get("key")
    return [rows.values, rows.counts, rows.indices, rows.paths, sorted(rows.failures), columns]


def memory_of_rows(network):
    """Bytes of all rows of a wide network, if this rank has them, and the most that were held."""

    def wide(model, batch):
        return torch.ones(len(batch["index"]), 2**16), 1, None, None

    with LiveMemory() as memory:
        rows = collect_rows(network, split(ColourVideos(40)), wide)
    return (0 if rows is None else rows.values.nbytes), memory.peak


def model():
    torch.manual_seed(0)
    return TinyEncoder()


def run(folder, rank, world):
    network = model()
    found = {
        name: described(extract_features(network, split(*given))) for name, given in SETS.items()
    }
    with pytest.raises(RuntimeError) as error:
        extract_features(network, split(ColourVideos(7, broken={3})))  # a sample of rank 1
    found["error"] = str(error.value)
    found["memory"] = memory_of_rows(network)
    boxes = split(BoxFrames(13, broken={4, 9}), make=box_loader)
    found["boxes"] = described(collect_rows(torch.nn.Identity(), boxes, box_rows))

    class Runner:
        model, work_dir, iter, epoch = MMDistributedDataParallel(network), str(folder), 0, 0
        seed, logger, visualizer, call_hook = 0, logging.getLogger(), Mock(), Mock()

    network.train()
    state = torch.get_rng_state()
    metrics = [dict(type="KNN", k=3), dict(type="FeatureStatistics")]
    given = split(ColourVideos(15)), split(ColourVideos(7))
    OnlineEvaluationHook(*given, metrics=metrics, out=f"online{rank}.jsonl").before_train(Runner)
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training and network.dropout.training
    return found


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_give_the_rows_and_metrics_of_one(tmp_path):
    """Key frames without boxes and unreadable ones, too; a failure is raised on all ranks."""
    ranks = run_gloo(partial(run, Path(tmp_path)), tmp_path)
    assert "rank 1" in ranks[0]["error"] and "class0.mp4" in ranks[0]["error"]
    assert ranks[1]["error"].startswith("person1/class0.mp4: cannot be decoded")
    network = model()
    one = {name: extract_features(network, loader(data)) for name, (data, _) in SETS.items()}
    boxes = box_loader(BoxFrames(13, broken={4, 9}), 2)
    one["boxes"] = collect_rows(torch.nn.Identity(), boxes, box_rows)
    for name, rows in one.items():
        values, *others = ranks[0][name]
        torch.testing.assert_close(values, rows.values, rtol=0, atol=1e-6)
        assert str(others) == str(described(rows)[1:]), name
        assert ranks[1][name] is None
    # Each rank computes half of the rows, and rank 1 never holds more.
    (of_all, of_main), (none, of_other) = (rank["memory"] for rank in ranks)
    assert of_main > of_all > 1.5 * of_other > 0.7 * of_all and none == 0
    # Online evaluation: rank 0 alone writes, metrics are those of one process.
    assert not (tmp_path / "online1.jsonl").exists()
    (line,) = [json.loads(text) for text in (tmp_path / "online0.jsonl").read_text().splitlines()]
    queries, gallery = one["odd"], extract_features(network, loader(ColourVideos(15)))
    scores = knn_scores(queries.features, gallery.features, gallery.labels, k=3)
    assert line["knn_top1"] == pytest.approx(top_k_accuracy(scores, queries.labels)[1])
    rank = float(effective_rank(queries.features))
    assert line["effective_rank"] == pytest.approx(rank, rel=1e-3)
    assert (line["epoch"], line["videos"]) == (0, 7)
