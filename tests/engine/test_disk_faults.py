"""A training whose disk is full, and checkpoints that have been damaged."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest
import torch
from helpers.disk_faults import contents, damage, file_size_limit
from helpers.training import Recorder, make_videos, small_config, train

from sce_video.engine import CheckpointHook
from sce_video.engine.checkpoint import find_checkpoints, load_checkpoint_file, save_checkpoint_file
from sce_video.utils.command import explain
from sce_video.utils.files import WriteError

LIMIT = 400_000  # bytes; more than the shared memory of a loader, less than a checkpoint


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), count=8)  # two iterations an epoch


class FullFrom(Recorder):
    """Sets a limit of file sizes from the end of an iteration on."""

    priority = "HIGHEST"

    def __init__(self, iteration: int, size: int) -> None:
        super().__init__()
        self.iteration, self.limit = iteration, file_size_limit(size)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        if runner.iter + 1 == self.iteration:
            self.limit.__enter__()


def train_until_full(cfg, iteration, size=LIMIT):
    """Train, with a full disk from an iteration on; the runner's error is raised."""
    hook = FullFrom(iteration, size)
    try:
        return train(cfg, recorder=hook)
    finally:
        hook.limit.__exit__(None, None, None)


def test_a_full_disk_at_a_checkpoint(videos, tmp_path):
    """Also a run that keeps one checkpoint keeps that one, and resumes when there is room."""
    hook = dict(type="CheckpointHook", interval=1, by_epoch=True, max_keep_ckpts=1)
    cfg = small_config(videos, tmp_path, default_hooks__checkpoint=hook, train_cfg__max_epochs=2)
    with pytest.raises(WriteError) as error:
        train_until_full(cfg, 3)
    assert explain(error.value) == (
        f"cannot write {tmp_path / 'epoch_2.pth'}: File too large; "
        f"the last checkpoint is {tmp_path / 'epoch_1.pth'}"
    )
    assert [path.name for path in find_checkpoints(tmp_path)] == ["epoch_1.pth"]
    assert not list(tmp_path.glob(".*"))
    assert (tmp_path / "last_checkpoint").read_text() == str(tmp_path / "epoch_1.pth")
    cfg.resume = True
    _, after = train(cfg)
    assert [row[0] for row in after.rows] == [2, 3]
    assert [path.name for path in find_checkpoints(tmp_path)] == ["epoch_2.pth"]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_logs_that_cannot_be_written_warn_once(videos, tmp_path, capsys):
    """Log file, rows, TensorBoard: the training goes on."""
    cfg = small_config(
        videos,
        tmp_path,
        default_hooks__checkpoint=dict(type="CheckpointHook", save_last=False, interval=99),
        train_cfg__max_epochs=3,
    )
    cfg.visualizer = dict(type="Visualizer", vis_backends=[dict(type="TensorboardVisBackend")])
    before = threading.excepthook
    _, recorder = train_until_full(cfg, 3, size=1500)
    assert len(recorder.rows) == 6 and threading.excepthook == before
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err and "Logging error" not in shown.err
    [log] = tmp_path.glob("*/*.log")
    assert shown.err.count(f"warning: cannot write {log}: File too large. The run goes on") == 1
    assert shown.out.count("TensorboardVisBackend writes nothing more in this run: ") == 1
    assert shown.out.count(f"cannot write {tmp_path / 'metrics.jsonl'}: File too large. The ") == 1
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["iter"] for row in rows] == list(range(1, len(rows) + 1)) and rows


class FakeRunner:
    """What CheckpointHook needs of a runner; fails to write on demand."""

    def __init__(self, folder):
        from mmengine.logging import MessageHub

        self.work_dir = str(folder)
        self.logger = logging.getLogger("fake")
        self.message_hub = MessageHub(f"fake_{folder.name}")
        self.epoch = self.iter = 0
        self.full = False

    def save_checkpoint(self, out_dir, filename, *args, **options):
        if self.full:
            raise WriteError("full")
        save_checkpoint_file({"meta": options["meta"]}, f"{out_dir}/{filename}")

    def call_hook(self, name, **event):
        removed = [Path(self.work_dir, removed) for removed in event["names"]]
        assert name == "after_removal" and not any(path.exists() for path in removed)


def test_the_best_checkpoint_is_kept_until_the_better_one_is_written(tmp_path):
    runner, names = FakeRunner(tmp_path), ["top1", "top5"]
    hook = CheckpointHook(interval=1, save_best=names, rule="greater", max_keep_ckpts=1)
    hook.before_train(runner)

    def epoch(top1):
        hook._save_checkpoint(runner)
        runner.epoch += 1
        hook.after_val_epoch(runner, {"top1": top1, "top5": top1 / 2})

    def files():
        return sorted(path.name for path in tmp_path.glob("*.pth"))

    for number, top1 in ((1, 0.5), (2, 0.6)):
        epoch(top1)
        best = [f"best_{name}_epoch_{number}.pth" for name in names]
        assert files() == sorted([*best, f"epoch_{number}.pth"])
    epoch(0.1)
    kept = sorted([*best, "epoch_3.pth"])
    assert files() == kept
    runner.full = True
    with pytest.raises(WriteError):
        hook.after_val_epoch(runner, {"top1": 0.9, "top5": 0.9})
    with pytest.raises(WriteError):
        hook._save_checkpoint(runner)
    assert files() == kept


@pytest.fixture(scope="module")
def trained(videos, tmp_path_factory):
    """A work dir with iter_1.pth to iter_4.pth."""
    folder = tmp_path_factory.mktemp("trained")
    train(small_config(videos, folder, train_cfg__max_epochs=2))
    return folder


def copied(trained, folder):
    """Copies of iter_2.pth to iter_4.pth in order of age."""
    for number in (2, 3, 4):
        (folder / f"iter_{number}.pth").write_bytes((trained / f"iter_{number}.pth").read_bytes())
    return folder / "iter_4.pth"


def test_a_damaged_checkpoint_is_passed_over(videos, trained, tmp_path):
    newest = copied(trained, tmp_path)
    record = damage(newest)
    cfg = small_config(videos, tmp_path, train_cfg__max_epochs=2)
    cfg.resume = True
    _, after = train(cfg)
    assert [row[0] for row in after.rows] == [3]  # resumed from iter_3.pth
    [log] = tmp_path.glob("*/*.log")
    assert f"skipped: {newest} is not a readable checkpoint: " in log.read_text()
    assert f"it is damaged: bits of its record {record} have changed" in log.read_text()


@pytest.mark.parametrize("cut", [3, 20_000])
def test_a_truncated_file_without_an_archive(tmp_path, cut):
    content = {"state_dict": {str(i): torch.ones(99) for i in range(99)}}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "a.pth").write_bytes((tmp_path / "a.pth").read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"a\.pth is not a readable checkpoint"):
        load_checkpoint_file(tmp_path / "a.pth")


def test_all_damaged_is_an_error_not_a_new_start(videos, trained, tmp_path):
    copied(trained, tmp_path)
    for path in find_checkpoints(tmp_path):
        path.write_bytes(path.read_bytes()[:-100])
    before = contents(tmp_path)
    cfg = small_config(videos, tmp_path)
    cfg.resume = True
    with pytest.raises(ValueError, match="none of the 3 checkpoints in .* can be read"):
        train(cfg)
    assert before.items() <= contents(tmp_path).items()


def test_every_changed_bit_of_the_data_is_noticed(tmp_path):
    """Of a file of torch.save; where a bit may change, the content read is the same."""
    path = tmp_path / "a.pth"
    content = {"w": torch.arange(40.0), "meta": {"epoch": 3}}
    save_checkpoint_file(content, path)
    whole = path.read_bytes()
    folder_bit = whole.index(b"PK\1\2", whole.rindex(b"archive/byteorder")) + 38
    for at in {*range(0, len(whole), 23), folder_bit}:
        changed = bytearray(whole)
        changed[at] ^= 16
        path.write_bytes(changed)
        try:
            read = load_checkpoint_file(path)
        except ValueError as error:
            assert str(path) in str(error)
        else:
            assert torch.equal(read["w"], content["w"]) and read["meta"] == content["meta"]
