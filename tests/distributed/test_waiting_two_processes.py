"""Ranks that wait for one that computes, writes or uploads alone."""

from __future__ import annotations

import ast
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from helpers.run_tool import free_port, run_ranks

import sce_video
from sce_video.utils import distributed
from sce_video.utils.distributed import gather_objects, run_on_main_rank, wait_for_all_ranks

#: Limit of the default group, as ten minutes are of NCCL's.
LIMIT = timedelta(seconds=5)
#: Duration of the work of one rank: longer than the limit.
SECONDS = 8


def work_alone(rank: int, port: int, folder: Path) -> None:
    """Let rank 0, and later rank 1, work for longer than the limit of the default group."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", timeout=LIMIT, rank=rank, world_size=2)
    metrics = run_on_main_rank(lambda: time.sleep(SECONDS) or {"top1": 0.5})
    if rank == 1:
        time.sleep(SECONDS)
    wait_for_all_ranks()
    ranks = gather_objects(rank)
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "usable_cores", lambda: 3)
        threads = run_on_main_rank(torch.get_num_threads), torch.get_num_threads()
    torch.save((metrics, ranks, threads), folder / f"{rank}.pt")
    os._exit(0)  # gloo's threads occasionally abort a process that ends in the usual way


def test_ranks_wait_longer_than_the_limit_of_the_default_group(tmp_path):
    run_ranks(work_alone, free_port(), tmp_path)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found == ({"top1": 0.5}, [0, 1], (3, 1))  # rank 0 has all threads meanwhile


def test_objects_are_exchanged_in_one_module():
    """Anywhere else, NCCL's watchdog would end the training while one rank is busy."""
    names = {"all_gather_object", "gather_object", "broadcast_object_list", "barrier"}
    package = Path(sce_video.__file__).parent
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        if path != package / "utils" / "distributed.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr) in names
    ]
    assert not found
