"""Signals and failures: a checkpoint after a whole step, workers that continue, exit status."""

from __future__ import annotations

import copy
import math
import os
import signal
import subprocess
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from helpers import training
from helpers.training import make_videos, small_config, train
from torch.utils.data import DataLoader

from sce_video.datasets import TooManyBadFilesError
from sce_video.engine import train_loop
from sce_video.engine.train_loop import (
    ResumableTrainLoop,
    StopSignals,
    copied_ahead,
    outliving_workers,
    start_workers,
)


@pytest.fixture(autouse=True)
def usual_handlers():
    """Handlers as in a terminal; tests run in the background may have SIGINT ignored."""
    before = {
        number: signal.signal(number, handler)
        for number, handler in (
            (signal.SIGINT, signal.default_int_handler),
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGHUP, signal.SIG_DFL),
        )
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return tuple(map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))


class Signalled(training.Recorder):
    """Sends itself signals before the iterations that ``at`` names, counted from 0."""

    def __init__(self, at: dict[int, list[int]]) -> None:
        super().__init__()
        self.at = at

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        for number in self.at.get(runner.iter, []):
            os.kill(os.getpid(), number)


def by_epoch(videos, work_dir, **changes):
    """Checkpoints at the end only, and those of a stop."""
    return small_config(
        videos,
        work_dir,
        default_hooks__checkpoint__by_epoch=True,
        default_hooks__checkpoint__interval=10,
        **changes,
    )


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.glob("*.pth"))


def test_a_step_is_completed(videos, tmp_path):
    """A signal in the first of three micro-batches; resumed, the run equals the uninterrupted."""
    options = dict(train_dataloader__batch_size=2, optim_wrapper__accumulative_counts=3)
    options |= dict(train_cfg__max_epochs=2, train_dataloader__num_workers=1)
    whole, uninterrupted = train(by_epoch(videos, tmp_path / "whole", **options))
    cfg = by_epoch(videos, tmp_path / "broken", **options)
    before_handlers = handlers()
    stopped, before = train(cfg, recorder=Signalled({6: [signal.SIGINT, signal.SIGTERM]}))
    assert handlers() == before_handlers
    assert stopped.train_loop.stopped_by == signal.SIGINT
    assert stopped.iter == 9 and names(tmp_path / "broken") == ["iter_9.pth"]
    cfg.resume = True
    resumed, after = train(cfg)
    assert len(uninterrupted.rows) == 12 and before.rows + after.rows == uninterrupted.rows
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_too_many_bad_files_leave_a_checkpoint(tmp_path):
    """Resumed with a larger share, the run equals one that had it from the beginning."""
    videos = make_videos(tmp_path / "videos")
    next(videos.rglob("*.mp4")).write_bytes(b"no video")
    short = dict(train_cfg__max_epochs=2)
    runs = {name: by_epoch(videos, tmp_path / name, **short) for name in ("whole", "broken")}
    hook = runs["broken"].default_hooks.bad_files
    hook.max_bad_share = 0.01
    before = training.Recorder()
    with pytest.raises(TooManyBadFilesError, match=r"1 of \d+ files cannot be decoded"):
        runner_of(runs["broken"], before).train()
    assert names(tmp_path / "broken") == [f"iter_{len(before.rows)}.pth"]
    hook.max_bad_share = 0.5
    runs["broken"].resume = True
    rows = [train(runs[name])[1].rows for name in ("broken", "whole")]
    assert before.rows + rows[0] == rows[1]


def test_a_failure_on_another_process_ends_this_one_too(monkeypatch):
    loop = ResumableTrainLoop.__new__(ResumableTrainLoop)
    loop._signals = SimpleNamespace(received=int(signal.SIGTERM))
    reduced = []
    monkeypatch.setattr(train_loop, "get_world_size", lambda: 2)
    monkeypatch.setattr(
        train_loop, "all_reduce", lambda value, op: value.fill_(max([*reduced, int(value)]))
    )
    for failure, other, message in [
        (None, 128, "another process of this run has failed"),
        (ValueError("here"), 0, "here"),
    ]:
        reduced[:], loop.failure = [other], failure
        with pytest.raises(train_loop._Stopped) as stopped:
            loop._stop_if_asked()
        assert message in str(stopped.value.by)


def runner_of(cfg, recorder):
    """A runner whose KeyboardInterrupt reaches the test; ``train`` catches it."""
    cfg.experiment_name = f"stopping_{id(recorder)}"
    runner = training.VideoRunner.from_cfg(cfg)
    runner.register_hook(recorder)
    return runner


def test_other_threads_and_ignored_signals_are_not_changed():
    seen = []

    def enter():
        with StopSignals() as signals:
            seen.append((handlers(), signals.received))

    before = handlers()
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(before, 0)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) not in before
    assert handlers() == (signal.SIG_IGN, signal.SIG_DFL, signal.SIG_IGN)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_forked_process_can_still_be_terminated(number):
    reader, writer = os.pipe()
    with StopSignals() as signals:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGINT)  # ignored by the child
            os.write(writer, b"x")
            time.sleep(60)
            os._exit(0)
        assert os.read(reader, 1) == b"x"
        os.kill(child, number)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
    os.close(reader)
    os.close(writer)
    assert signals.received == 0


class Pids(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return os.getpid()


def seeded(folder, worker):
    (folder / f"worker{worker}").touch()


def test_workers_are_ended_by_their_parent_only(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # torch then starts a thread in each worker, before its initialisation
    loader = DataLoader(
        Pids(), num_workers=2, persistent_workers=True, worker_init_fn=partial(seeded, tmp_path)
    )
    own = loader.worker_init_fn
    with outliving_workers(loader):
        batches = start_workers(loader)
        torch.set_num_threads(threads)
        pids = {int(next(batches)) for _ in range(2)}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for pid in pids:
                # sent by another process, as at the end of a job
                subprocess.run(["kill", f"-{number.name[3:]}", str(pid)], check=True)
        assert {int(pid) for pid in batches} == pids
    assert loader.worker_init_fn is own
    assert (tmp_path / "worker0").exists() and (tmp_path / "worker1").exists()
    processes = loader._iterator._workers
    for process in processes:
        process.terminate()
        process.join(60)
    assert [p.exitcode for p in processes] == [0, 0]


# Copies of batches to the device.


def batches():
    for i in range(5):
        yield {
            "inputs": [torch.full((2, 1, 4, 4, 3), 10 * i + v, dtype=torch.uint8) for v in (0, 1)],
            "seed": torch.tensor([i, i + 1]),
            "failures": [("a", "b")],
        }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_views_are_copied_completely():
    device = torch.device("cuda")
    for i, batch in enumerate(copied_ahead(batches(), device)):
        for v, view in enumerate(batch["inputs"]):
            assert view.device.type == "cuda" and bool((view == 10 * i + v).all())
        assert batch["seed"].device.type == "cpu"


# Accumulation, mixed precision, compilation and memory layout in whole trainings.


def test_epochs_end_with_whole_steps(videos, tmp_path):
    cfg = small_config(
        videos,
        tmp_path,
        train_dataloader__batch_size=2,  # 6 batches an epoch: one step of 4, 2 left out
        optim_wrapper__accumulative_counts=4,
        default_hooks__checkpoint__interval=4,
        train_cfg__max_epochs=2,
    )
    wrong = copy.deepcopy(cfg)
    wrong.default_hooks.checkpoint.interval = 6
    with pytest.raises(
        ValueError, match="6 iterations, must be a multiple of accumulative_counts=4"
    ):
        train(wrong)
    runner, recorder = train(cfg)
    assert [row[0] for row in recorder.rows] == list(range(8))
    algorithm = runner.model
    assert int(algorithm.queue.pointer) == 2 * 4 * 2 * 2 % 20  # steps x batches x batch x views
    steps = {int(s["step"]) for s in runner.optim_wrapper.optimizer.state.values()}
    assert steps == {2}


def test_mmaction2_loads_the_backbone_of_a_checkpoint(videos, tmp_path):
    """As in README.md: a Recognizer3D of an mmaction2 config, ``prefix="backbone."``."""
    runner, _ = train(small_config(videos, tmp_path, train_cfg__max_epochs=1))
    from mmaction.registry import MODELS as MMACTION_MODELS
    from mmengine.registry import DefaultScope

    weights = dict(type="Pretrained", checkpoint=str(tmp_path / "iter_3.pth"), prefix="backbone.")
    backbone = dict(type="sce_video.ResNet3dSlowPath", depth=18, base_channels=4, init_cfg=weights)
    head = dict(type="I3DHead", num_classes=5, in_channels=32)
    with DefaultScope.overwrite_default_scope("mmaction"):
        recogniser = MMACTION_MODELS.build(
            dict(type="Recognizer3D", backbone=backbone, cls_head=head)
        )
        recogniser.init_weights()
    pretrained = runner.model.backbone.state_dict()
    for name, value in recogniser.backbone.state_dict().items():
        assert torch.equal(value, pretrained[name]), name


def losses(recorder):
    return [row[1] for row in recorder.rows]


def test_compiled_backbones_and_bfloat16_train_as_before(videos, tmp_path, monkeypatch):
    """What torch.compile does to a module is replaced by nothing: its own import takes seconds."""
    begun, compiled = [], []  # steps that CUDA graphs would be told of, and compiled modules
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(1))

    def unchanged(forward, **options):
        compiled.append((forward.__self__, options))
        return forward

    monkeypatch.setattr(torch, "compile", unchanged)
    plain, expected = train(small_config(videos, tmp_path / "a", train_cfg__max_epochs=1))
    cfg = small_config(
        videos, tmp_path / "b", train_cfg__max_epochs=1, compile=dict(mode="default")
    )
    runner, recorder = train(cfg)
    assert len(begun) == 3 and losses(recorder) == losses(expected)
    model = runner.model
    options = {"dynamic": False, "mode": "default"}
    assert compiled == [(b, options) for b in (model.backbone, model.target.backbone)]
    assert set(model.state_dict()) == set(plain.model.state_dict())  # exchangeable

    cfg = small_config(videos, tmp_path / "c", train_cfg__max_epochs=1)
    cfg.optim_wrapper |= dict(type="MixedPrecisionOptimWrapper", dtype="bfloat16")
    runner, recorder = train(cfg)
    # In 16 bits steps differ from the second on.
    assert losses(recorder)[0] == pytest.approx(losses(expected)[0], abs=0.3)
    assert all(map(math.isfinite, losses(recorder)))
    guarded = any(type(part).__name__ == "SmallConv3d" for part in runner.model.modules())
    assert guarded, "two frames, and kernels of three"


def test_deterministic_algorithms_are_taken_where_they_exist(videos, tmp_path, monkeypatch):
    """Else an operation without one, as 3D max pooling on GPUs, would end the training."""
    calls = []
    monkeypatch.setattr(
        torch,
        "use_deterministic_algorithms",
        lambda mode, *, warn_only=False: calls.append((mode, warn_only)),
    )
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cfg = small_config(videos, tmp_path, randomness=dict(deterministic=True, seed=1))
    train(cfg, stop_after=1)
    assert calls[-1] == (True, True) and torch.backends.cudnn.deterministic
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
