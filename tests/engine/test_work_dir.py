"""One run per work folder: the lock, the refusal of a used folder, overwriting."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import nullcontext

import pytest
from helpers.training import make_videos, small_config, train

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.work_dir import LOCK, check_unused, locked_folder
from sce_video.pages.run_record import read_history, read_scalars
from sce_video.runs import launch
from sce_video.utils.files import WriteError


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), 4)


@pytest.fixture(autouse=True)
def unformatted_configs(monkeypatch):
    """mmengine formats the config several times per run, which takes longer than the training."""
    formatter = "mmengine.config.config.FormatCode"
    monkeypatch.setattr(formatter, lambda text, **options: (text, False), raising=False)


def config(videos, work_dir, **changes):
    changes = {"train_cfg__max_epochs": 2, "default_hooks__checkpoint__by_epoch": True, **changes}
    cfg = small_config(videos, work_dir, **changes)
    cfg.visualizer = dict(type="Visualizer", vis_backends=[dict(type="LocalVisBackend")])
    cfg.experiment_name = f"work_dir_{time.monotonic_ns()}"
    return cfg


def names(folder, pattern="*.pth"):
    return sorted(path.name for path in folder.glob(pattern))


def test_a_second_training_is_refused_and_names_the_holder(tmp_path):
    with locked_folder(tmp_path):
        holder = rf"host {os.uname().nodename}, process {os.getpid()}, since \d{{4}}-"
        with pytest.raises(ValueError, match=rf"another training run is using .*{holder}"):
            with locked_folder(tmp_path):
                pass
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()  # not emptied
    with locked_folder(tmp_path):
        pass


def test_a_killed_training_leaves_no_lock_even_if_its_workers_live(tmp_path):
    ready, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        with locked_folder(tmp_path / "run"):
            worker = os.fork()  # as a loader worker
            if worker == 0:
                time.sleep(60)
            else:
                os.write(write, str(worker).encode())
                time.sleep(60)
        os._exit(0)
    worker = int(os.read(ready, 20))
    try:
        with pytest.raises(ValueError, match=f"process {holder}"):
            with locked_folder(tmp_path / "run"):
                pass
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        with locked_folder(tmp_path / "run"):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_used_folder_is_refused_before_anything_is_written(videos, tmp_path):
    launch.run_training(config(videos, tmp_path))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        ValueError,
        match=r"contains an earlier training run \(2 checkpoints, the newest epoch_2\.pth; the log "
        r"of 1 start, the last \d+_\d+\)\. --resume continues it, and --overwrite removes it",
    ):
        launch.run_training(config(videos, tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    # A checkpoint of another folder begins a run here, too.
    other = config(videos, tmp_path / "other", resume=True, load_from=str(tmp_path / "epoch_1.pth"))
    launch.run_training(other)
    assert names(tmp_path / "other") == ["epoch_2.pth"]
    back = config(videos, tmp_path, resume=True, load_from=str(tmp_path / "other/epoch_2.pth"))
    with pytest.raises(ValueError, match="contains an earlier training run"):
        launch.run_training(back)


def test_overwriting_removes_the_earlier_training(videos, tmp_path):
    launch.run_training(config(videos, tmp_path, train_cfg__max_epochs=3))
    (log,) = (path.parent for path in tmp_path.glob("*/*.log"))
    earlier = tmp_path / "20200101_000000"  # the time stamps of this test may be equal
    log.rename(earlier)
    history = tmp_path / "history.jsonl"
    history.write_text(history.read_text().replace(log.name, earlier.name))
    kept = [tmp_path / "results.json", tmp_path / "notes" / "epoch_1.pth"]
    lists = ("online_evaluation.jsonl", "run.html", "run_page_features.npz")
    gone = [tmp_path / name for name in ("best_top1_epoch_2.pth", *lists)]
    for path in kept + gone:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with pytest.raises(ValueError, match="do not fill one step"):  # a start that fails
        launch.run_training(
            config(videos, tmp_path, train_dataloader__batch_size=50), overwrite=True
        )
    assert earlier.exists() and (tmp_path / "epoch_3.pth").exists()
    launch.run_training(config(videos, tmp_path, train_cfg__max_epochs=1), overwrite=True)
    assert names(tmp_path) == ["epoch_1.pth"] and not earlier.exists()
    assert load_checkpoint_file(tmp_path / "epoch_1.pth")["meta"]["epoch"] == 1
    assert [row["iter"] for row in read_scalars(tmp_path)] == [1]
    assert [row["event"] for row in read_history(tmp_path)] == ["start", "end"]
    assert all(path.exists() for path in kept) and not any(path.exists() for path in gone)


def test_steps_without_a_checkpoint_are_an_earlier_training(videos, tmp_path):
    with pytest.raises(ValueError):  # a start without a step is none
        launch.run_training(config(videos, tmp_path, train_dataloader__batch_size=50))
    assert list(tmp_path.glob("*/*.log"))
    check_unused(tmp_path)
    train(config(videos, tmp_path), stop_after=2)
    for path in tmp_path.glob("*.pth"):
        path.unlink()
    with pytest.raises(
        ValueError, match=r"contains an earlier training run \(the log of 1"
    ) as raised:
        check_unused(tmp_path)
    assert "--resume" not in str(raised.value)


IN_PLACE = ["history.jsonl", "metrics.jsonl", "alarms.jsonl", "online_evaluation.jsonl"]
IN_PLACE += [LOCK, "bad_files.jsonl", "last_checkpoint", "20300101_000000"]


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("kind", ["file", "missing", "pipe"])
def test_a_run_folder_from_elsewhere_writes_through_no_link(name, kind, tmp_path):
    """A link to ``.bashrc``, and a folder called ``$(touch X)``, would run code."""
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(target)
    if kind == "file":
        target.write_text("own")
    with pytest.raises(OSError, match=f"{run / name} is (a symbolic link|not a regular file)"):
        with locked_folder(run):
            pass
    assert kind != "file" or target.read_text() == "own"
    assert kind == "file" or not target.exists()
    assert os.listdir(run) == [name]


@pytest.mark.parametrize("name", ["last_checkpoint", "history.jsonl"])
def test_a_runner_alone_writes_through_no_link(name, videos, tmp_path):
    """Of a program that starts the runner itself, nobody has looked into the folder."""
    (tmp_path / "target").write_text("own")
    run = tmp_path / "$(touch X)"
    run.mkdir()
    (run / name).symlink_to(tmp_path / "target")
    stopped = pytest.raises(WriteError, match=f"{name}: it is a symbolic link")
    with stopped if name == "last_checkpoint" else nullcontext():  # a log that fails is a warning
        train(config(videos, run, train_cfg__max_epochs=1))
    assert (tmp_path / "target").read_text() == "own"


def test_a_log_is_written_through_no_link(videos, tmp_path, monkeypatch):
    """An unpacked folder may hold links for all the seconds of the next days."""
    monkeypatch.setattr("mmengine.runner.runner.time.strftime", lambda *_: "20300101_000000")
    (tmp_path / "target").write_text("own")
    run = tmp_path / "run"
    (run / "20300101_000000").mkdir(parents=True)
    (run / "20300101_000000/20300101_000000.log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"000000\.log is a symbolic link"):
        launch.run_training(config(videos, run))
    assert (tmp_path / "target").read_text() == "own"
