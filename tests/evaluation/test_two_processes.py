"""Two gloo processes embed and judge what one does, every video once."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.evaluation_fakes import ColourVideos, TinyEncoder, loader

from sce_video.evaluation import (
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
rank, out = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", rank=rank, world_size=2)
from helpers.evaluation_fakes import ColourVideos, TinyEncoder, loader
from sce_video.evaluation import OnlineEvaluationHook
from sce_video.evaluation import (extract_features, save_features)

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
    data = ColourVideos(7, broken={3})  # on the second process only
    sampler = DefaultSampler(data, shuffle=False, round_up=False, seed=0)
    extract_features(model, loader(data, 2, sampler=sampler))
except RuntimeError as error:
    print(f"RAISED {error}", flush=True)

# The online judge with a wrapped model: each process embeds its share, the first one writes.
class Runner:
    model, work_dir, iter, epoch, seed = MMDistributedDataParallel(model), out, 0, 0, 0
    logger, visualizer = logging.getLogger(), Mock()


def share(count):
    data = ColourVideos(count)
    sampler = DefaultSampler(data, shuffle=False, round_up=False, seed=0)
    return loader(data, 2, sampler=sampler)


model.train()
state, drawn = torch.get_rng_state(), torch.rand(1)
torch.set_rng_state(state)
metrics = [dict(type="KNN", k=3), dict(type="FeatureStatistics")]
hook = OnlineEvaluationHook(share(15), share(7), metrics=metrics, out=f"online{rank}.jsonl")
hook.before_train(Runner)
assert torch.equal(torch.rand(1), drawn)
assert model.training and model.dropout.training
try:
    dist.barrier()
finally:
    os._exit(0)  # gloo's threads now and then abort a process that ends in the usual way
"""


@pytest.mark.distributed
def test_two_processes_give_what_one_gives(tmp_path, repo):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = [str(repo), str(repo / "tests")]
    env = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", WORKER]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert "RAISED" in outputs[0] and "rank 1" in outputs[0] and "class0.mp4" in outputs[0]
    assert "RAISED person1/class0.mp4: cannot be decoded" in outputs[1]

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

    assert not (tmp_path / "online1.jsonl").exists()
    (line,) = [json.loads(text) for text in (tmp_path / "online0.jsonl").read_text().splitlines()]
    queries, bank = expected["odd"], extract_features(model, loader(ColourVideos(15)))
    scores = knn_scores(queries.features, bank.features, bank.labels, k=3)
    assert line["knn_top1"] == pytest.approx(top_k_accuracy(scores, queries.labels)[1])
    assert line["effective_rank"] == pytest.approx(
        float(effective_rank(queries.features)), rel=1e-3
    )
    assert (line["epoch"], line["videos"]) == (0, 7)
