"""A checkpoint of two gloo processes resumes on one and the reverse, with the same global batch."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.recognition import LINEAR, make_splits, small_options
from helpers.run_tool import free_port, run_ranks
from helpers.training import Recorder

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.runs import launch

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
BATCH = 2  # of a micro-batch; two of them make a step


class Rates(Recorder):
    """Also records the learning rates."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.rates.append(runner.optim_wrapper.optimizer.param_groups[0]["lr"])


def run(videos: Path, folder: Path, launcher: str, resume: str | None, accumulated: int) -> dict:
    """Train the linear classifier, whose BN is frozen: one process computes what two do."""
    cfg = launch.training_config(
        LINEAR,
        work_dir=folder,
        pretrained="random",
        amp="float32",
        seed=0,
        resume=resume,
        launcher=launcher,
        cfg_options=[
            *small_options(videos, train_cfg__max_epochs=4, train_dataloader__batch_size=BATCH),
            "split=1",
            "train_cfg.val_interval=100",
            "default_hooks.checkpoint.max_keep_ckpts=-1",
            f"optim_wrapper.accumulative_counts={accumulated}",
        ],
    )
    cfg.experiment_name = f"resume_{folder.name}_{launcher}"
    recorder = Rates()
    real = launch.VideoRunner.from_cfg

    def with_recorder(cfg):
        runner = real(cfg)
        runner.register_hook(recorder)
        return runner

    # mmengine formats the config several times per run, which takes longer than this training.
    unformatted = mock.patch("mmengine.config.config.FormatCode", lambda text, **_: (text, False))
    with unformatted, mock.patch.object(launch.VideoRunner, "from_cfg", with_recorder):
        runner = launch.train(cfg)
    return {"rates": recorder.rates, "indices": recorder.indices, "iter": runner.iter}


def on_two(rank: int, port: int, videos: Path, root: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    whole = run(videos, root / "two", "pytorch", None, 1)
    torch.save(whole, root / f"two_{rank}.pt")
    source = str(root / "one/epoch_2.pth")
    torch.save(run(videos, root / "one_two", "pytorch", source, 1), root / f"one_two_{rank}.pt")
    # A refusal is raised on both ranks.
    with pytest.raises(ValueError, match="holds an earlier training"):
        run(videos, root / "two", "pytorch", None, 1)
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads occasionally abort a process that ends in the usual way


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    videos = make_splits(root / "videos", 13)  # 8 training videos: 2 steps of 4 an epoch
    one = run(videos, root / "one", "none", None, 2)
    run_ranks(on_two, free_port(), videos, root)
    # The recipe's 1 micro-batch becomes 2.
    two_one = run(videos, root / "two_one", "none", str(root / "two/epoch_2.pth"), 1)
    return root, one, two_one


def state(folder):
    return load_checkpoint_file(folder / "epoch_4.pth")


def assert_sums_close(found: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Sums of float32 in another order: the error is that of the largest values, not of each."""
    atol = 1e-6 + 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=atol, msg=name)


@pytest.mark.parametrize("name", ["two", "one_two", "two_one"])
def test_weights_and_optimiser_equal_those_of_one_process(runs, name):
    root, _, _ = runs
    expected, found = state(root / "one"), state(root / name)
    for key, value in expected["state_dict"].items():
        assert_sums_close(found["state_dict"][key], value, key)
    moments = expected["optimizer"]["state"]
    assert moments and set(moments) == set(found["optimizer"]["state"])
    for index, entry in moments.items():
        other = found["optimizer"]["state"][index]["momentum_buffer"]
        assert_sums_close(other, entry["momentum_buffer"], str(index))


def test_schedule_and_samples_of_every_step_are_those_of_one_process(runs):
    root, one, two_one = runs
    steps = [sum(one["indices"][i : i + 2], []) for i in range(0, 16, 2)]
    assert one["iter"] == 16 and len(set(one["rates"])) > 4
    # two processes on one: the last two epochs, in micro-batches
    assert two_one["iter"] == 16
    assert two_one["indices"] == one["indices"][8:] and two_one["rates"] == one["rates"][8:]
    # one process on two: both ranks together have the samples of a step
    for name, first in (("two", 0), ("one_two", 4)):
        ranks = [torch.load(root / f"{name}_{rank}.pt") for rank in (0, 1)]
        assert ranks[0]["iter"] == 8
        joint = [sorted(a + b) for a, b in zip(*(r["indices"] for r in ranks), strict=True)]
        assert joint == [sorted(step) for step in steps[first:]]
        assert ranks[0]["rates"] == ranks[1]["rates"] == one["rates"][2 * first :: 2]


def test_the_log_says_what_was_adapted(runs):
    root, _, _ = runs
    text = "".join(path.read_text() for path in (root / "two_one").glob("*/*.log"))
    assert "has a global batch of 4 (2 processes x 2 x 1 accumulated)" in text
    assert "accumulative_counts is 2, not 1" in text
    assert "random states of the ranks" in text
