"""Two gloo processes give the rows and metrics of one process, every sample once."""

import json
from pathlib import Path

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
from helpers.run_tool import run_tool_ranks

from sce_video.evaluation import (
    collect_rows,
    extract_features,
    knn_scores,
    load_features,
    top_k_accuracy,
)
from sce_video.models.losses import effective_rank

WORKER = """
import os
import sys
import logging
from unittest.mock import Mock

import torch
import torch.distributed as dist
from mmengine.dataset import DefaultSampler
from mmengine.model import MMDistributedDataParallel

torch.set_num_threads(1)
rank, out = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo", rank=rank, world_size=2)
from helpers.evaluation_fakes import BoxFrames, ColourVideos, TinyEncoder
from helpers.evaluation_fakes import box_loader, box_rows, loader
from sce_video.evaluation import OnlineEvaluationHook, collect_rows
from sce_video.evaluation import extract_features, save_features

torch.manual_seed(0)
model = TinyEncoder()
for name, count, round_up in (("odd", 7, False), ("padded", 7, True), ("single", 1, False)):
    data = ColourVideos(count)
    sampler = DefaultSampler(data, shuffle=False, round_up=round_up, seed=0)
    features = extract_features(model, loader(data, 2, sampler=sampler))
    save_features(f"{out}/{name}{rank}.npz", features)
data = ColourVideos(7, broken={1, 4}, on_error="skip")
sampler = DefaultSampler(data, shuffle=False, round_up=False, seed=0)
save_features(f"{out}/skip{rank}.npz", extract_features(model, loader(data, 2, sampler=sampler)))
try:
    data = ColourVideos(7, broken={3})  # in the samples of rank 1
    sampler = DefaultSampler(data, shuffle=False, round_up=False, seed=0)
    extract_features(model, loader(data, 2, sampler=sampler))
except RuntimeError as error:
    print(f"RAISED {error}", flush=True)

# Rows of boxes: key frames without boxes, unreadable ones, other numbers of boxes on each rank.
data = BoxFrames(13, broken={4, 9})
sampler = DefaultSampler(data, shuffle=False, round_up=False, seed=0)
rows = collect_rows(torch.nn.Identity(), box_loader(data, 2, sampler=sampler), box_rows)
torch.save([rows.values, rows.counts, rows.indices, rows.failures, rows.columns["key"]],
           f"{out}/boxes{rank}.pth")


# Online evaluation of a wrapped model: each rank embeds its samples, rank 0 writes.
class Runner:
    model, work_dir, iter, epoch, seed = MMDistributedDataParallel(model), out, 0, 0, 0
    logger, visualizer, call_hook = logging.getLogger(), Mock(), Mock()


def distributed_loader(count):
    data = ColourVideos(count)
    sampler = DefaultSampler(data, shuffle=False, round_up=False, seed=0)
    return loader(data, 2, sampler=sampler)


model.train()
state, drawn = torch.get_rng_state(), torch.rand(1)
torch.set_rng_state(state)
metrics = [dict(type="KNN", k=3), dict(type="FeatureStatistics")]
hook = OnlineEvaluationHook(
    distributed_loader(15), distributed_loader(7), metrics=metrics, out=f"online{rank}.jsonl"
)
hook.before_train(Runner)
assert torch.equal(torch.rand(1), drawn)
assert model.training and model.dropout.training
try:
    dist.barrier()
finally:
    os._exit(0)  # gloo's threads sometimes abort a process at a normal exit
"""


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_give_the_rows_and_metrics_of_one(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    ranks = run_tool_ranks(tmp_path / "worker.py", tmp_path)
    outputs = [done.stdout + done.stderr for done in ranks]
    assert [done.returncode for done in ranks] == [0, 0], outputs
    assert "RAISED" in outputs[0] and "rank 1" in outputs[0] and "class0.mp4" in outputs[0]
    assert "RAISED person1/class0.mp4: cannot be decoded" in outputs[1]

    check_boxes(tmp_path)

    torch.manual_seed(0)
    model = TinyEncoder()
    expected = {
        "odd": extract_features(model, loader(ColourVideos(7))),
        "padded": extract_features(model, loader(ColourVideos(7))),
        "single": extract_features(model, loader(ColourVideos(1))),
        "skip": extract_features(model, loader(ColourVideos(7, broken={1, 4}, on_error="skip"))),
    }
    for name, one in expected.items():
        for rank in range(2):
            two, _ = load_features(Path(tmp_path) / f"{name}{rank}.npz")
            assert two.indices.tolist() == one.indices.tolist(), name
            assert two.paths == one.paths
            assert sorted(two.failures) == sorted(one.failures)
            assert two.num_views == one.num_views
            torch.testing.assert_close(two.features, one.features, rtol=0, atol=1e-6)

    check_online_evaluation(tmp_path, model, expected["odd"])


def check_online_evaluation(folder, model, queries):
    """Only rank 0 writes; its metrics are those of one process."""
    assert not (folder / "online1.jsonl").exists()
    (line,) = [json.loads(text) for text in (folder / "online0.jsonl").read_text().splitlines()]
    gallery = extract_features(model, loader(ColourVideos(15)))
    scores = knn_scores(queries.features, gallery.features, gallery.labels, k=3)
    assert line["knn_top1"] == pytest.approx(top_k_accuracy(scores, queries.labels)[1])
    assert line["effective_rank"] == pytest.approx(
        float(effective_rank(queries.features)), rel=1e-3
    )
    assert (line["epoch"], line["videos"]) == (0, 7)


def check_boxes(folder):
    """Rows of boxes on both ranks equal those of one process."""
    one = collect_rows(torch.nn.Identity(), box_loader(BoxFrames(13, broken={4, 9}), 2), box_rows)
    for rank in range(2):
        values, counts, indices, failures, keys = torch.load(
            folder / f"boxes{rank}.pth", weights_only=True
        )
        assert torch.equal(values, one.values) and torch.equal(counts, one.counts)
        assert torch.equal(indices, one.indices) and keys == one.columns["key"]
        assert sorted(failures) == sorted(one.failures)
