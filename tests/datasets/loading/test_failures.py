"""The crash of a loader worker names the file that it was reading, and may cost only that file."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from sce_video.datasets import (
    BadFileReport,
    TooManyBadFilesError,
    VideoDataset,
    WorkerCrashError,
    batches_without_crashes,
    collate_views,
    report_worker_crashes,
)
from sce_video.utils.private_parts import end_persistent_workers


def view(results):
    return {
        "inputs": [torch.zeros(2, 4, 4, 3, dtype=torch.uint8)],
        **{key: results[key] for key in ("label", "index", "seed")},
    }


class CrashAt:
    """Kills its process at some of the videos, as a crash inside a decoder does."""

    def __init__(self, how: int, *numbers: int) -> None:
        self.how, self.numbers = how, numbers

    def __call__(self, results):
        if results["index"] in self.numbers:
            os.kill(os.getpid(), self.how)
            signal.pause()  # the signal may go to another thread: a real crash stops this one
        return view(results)


class KillsWhileCollating:
    def __call__(self, samples):
        os.kill(os.getpid(), signal.SIGKILL)


def crash_message(loader, batches=None):
    """The message of the WorkerCrashError that iterating over the loader raises.

    The iterator is collected here: as long as it exists, torch's SIGCHLD handler raises an error
    about its crashed worker whenever another child process ends, anywhere in the test session.
    """
    with pytest.raises(WorkerCrashError) as raised, report_worker_crashes(loader):
        for _ in batches or loader:
            pass
    message = str(raised.value)
    del raised
    gc.collect()
    return message


@pytest.fixture
def folder(tmp_path):
    for i in range(6):
        (tmp_path / f"väg {i}.mp4").write_bytes(b"")
    return tmp_path


def test_the_file_being_read_is_named(folder):
    dataset = VideoDataset(str(folder), pipeline=[CrashAt(signal.SIGSEGV, 3)])
    loader = DataLoader(Subset(dataset, range(6)), 2, num_workers=2, collate_fn=collate_views)
    message = crash_message(loader)
    assert re.search(r"crashed while reading .*väg 3\.mp4", message)
    assert "väg 2.mp4" not in message and "sce-video verify" in message


def test_a_crash_outside_of_reading_names_no_file(folder):
    dataset = VideoDataset(str(folder), pipeline=[view], on_error="skip")
    loader = DataLoader(dataset, 2, num_workers=1, collate_fn=KillsWhileCollating())
    message = crash_message(loader, batches_without_crashes(loader))
    assert "while it was reading no file" in message and "lack of memory" in message


def test_a_crash_while_sending_a_batch_is_reported_too(folder, monkeypatch):
    """torch then raises a connection error, not its message for a crashed worker."""
    dataset = VideoDataset(str(folder), pipeline=[view])
    both = ConcatDataset([Subset(dataset, [0]), dataset])
    loader = DataLoader(both, 2, num_workers=1, collate_fn=collate_views)
    fork = multiprocessing.get_context("fork")
    ended, running = (fork.Process(target=run, daemon=True) for run in (int, signal.pause))
    ended.start()
    ended.join()
    row = dataset.current_files._table[3].numpy()
    row[:8] = list(ended.pid.to_bytes(8, "little"))
    row[8:13] = list(b"a.mp4")
    crash = f"process {ended.pid}.*reading a.mp4: ConnectionReset"
    with pytest.raises(WorkerCrashError, match=crash), report_worker_crashes(loader):
        raise ConnectionResetError(104, "Connection reset by peer")
    running.start()
    row[:8] = list(running.pid.to_bytes(8, "little"))  # a running process is not reported
    monkeypatch.setattr("sce_video.datasets.loading.failures._PATIENCE", 0.1)
    with pytest.raises(ConnectionResetError), report_worker_crashes(loader):
        raise ConnectionResetError(104, "Connection reset by peer")
    running.kill()
    running.join()


# -- evaluation goes on without the file --------------------------------------------------------


def read_all(loader):
    """Indices and bad files of all batches, and the number of batches."""
    batches = list(batches_without_crashes(loader))
    indices = [int(i) for batch in batches for i in batch["index"]]
    failures = [pair for batch in batches for pair in batch["failures"]]
    return indices, failures, len(batches)


def test_files_that_crash_a_worker_are_skipped(folder):
    crash = CrashAt(signal.SIGSEGV, 0, 3)
    dataset = VideoDataset(str(folder), pipeline=[crash], on_error="skip")
    loader = DataLoader(Subset(dataset, range(6)), 2, num_workers=2, collate_fn=collate_views)
    indices, failures, count = read_all(loader)
    assert indices == [1, 2, 4, 5] and count == 3
    assert [os.path.basename(path) for path, _ in failures] == [f"väg {i}.mp4" for i in (0, 3)]
    # A worker that crashes while a batch of it is being fetched breaks the connection.
    how = r"\((is killed by signal: Segm.*|Connection\w+|EOFError)\)$"
    for _, reason in failures:
        assert re.match("crashed the process that was reading it " + how, reason)
    again = read_all(loader)  # the data set knows them now
    assert again[0] == indices and again[1] == failures


class KilledOnce:
    """Ends its process from outside at one video, while there is no file of that name."""

    def __init__(self, marker, number: int) -> None:
        self.marker, self.number = marker, number

    def __call__(self, results):
        if results["index"] == self.number and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        return view(results)


def test_a_worker_that_is_killed_costs_no_file(folder, tmp_path):
    """As the system does where memory runs out: the file is read once more."""
    killed = KilledOnce(tmp_path / "killed", 3)
    dataset = VideoDataset(str(folder), pipeline=[killed], on_error="skip")
    loader = DataLoader(dataset, 2, num_workers=2, collate_fn=collate_views)
    assert read_all(loader) == ([0, 1, 2, 3, 4, 5], [], 3)


def test_a_training_whose_worker_is_killed_does_not_blame_the_file(folder):
    dataset = VideoDataset(str(folder), pipeline=[CrashAt(signal.SIGKILL, 3)])
    loader = DataLoader(dataset, 2, num_workers=1, collate_fn=collate_views)
    message = crash_message(loader)
    assert "väg 3.mp4" in message and "The file is probably not the reason" in message
    assert "lack of memory" in message and "remove it" not in message


def test_single_samples_and_persistent_workers(folder):
    crash = CrashAt(signal.SIGKILL, 2)
    dataset = VideoDataset(str(folder), pipeline=[crash], on_error="skip")
    loader = DataLoader(
        dataset, None, num_workers=2, collate_fn=lambda sample: sample, persistent_workers=True
    )
    samples = list(batches_without_crashes(loader))
    assert [sample.get("index") for sample in samples] == [0, 1, None, 3, 4, 5]
    end_persistent_workers(loader)


def test_a_crash_never_interrupts_what_is_done_with_a_batch(folder):
    """torch's handler of SIGCHLD raises wherever the main process is."""
    crash = CrashAt(signal.SIGKILL, 1)
    dataset = VideoDataset(str(folder), pipeline=[crash], on_error="skip")
    loader = DataLoader(dataset, 1, num_workers=1, collate_fn=collate_views)
    handler = signal.getsignal(signal.SIGCHLD)
    seen, crashed = [], False
    for batch in batches_without_crashes(loader):
        while not (crashed or dataset._known_bad):  # the worker crashes meanwhile, if not before
            for pid in dataset.current_files.entries():
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                crashed = True
        seen.append(batch["index"].tolist())
    assert seen == [[0], [], [2], [3], [4], [5]]
    assert callable(handler) is False or signal.getsignal(signal.SIGCHLD) == handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_group_ends_no_worker(folder, number):
    """The main process decides. torch would raise an error about the worker in whatever it does.

    Such a signal also comes while a page or an evaluation embeds videos.
    """
    dataset = VideoDataset(str(folder), pipeline=[view], on_error="skip")
    loader = DataLoader(dataset, None, num_workers=1, collate_fn=lambda sample: sample)
    samples = batches_without_crashes(loader)
    indices = [next(samples)["index"]]
    (worker,) = multiprocessing.active_children()
    # Sent by another process, not by the parent of the worker.
    subprocess.run(["kill", f"-{number.name[3:]}", str(worker.pid)], check=True)
    assert indices + [sample["index"] for sample in samples] == [0, 1, 2, 3, 4, 5]
    assert worker.exitcode == 0  # not by the signal


class Hands:
    """What the thread that hands a batch over reports, as multiprocessing reports it."""

    def __init__(self, *errors):
        self.errors = errors

    def __len__(self):
        return len(self.errors)

    def __getitem__(self, index):
        try:
            raise self.errors[index]
        except Exception:
            sys.excepthook(*sys.exc_info())
        return index


def test_a_worker_does_not_report_that_its_parent_was_interrupted(capfd):
    loader = DataLoader(Hands(ConnectionResetError(), EOFError(), KeyError("own")), num_workers=1)
    assert len(list(batches_without_crashes(loader))) == 3
    text = capfd.readouterr().err
    assert "KeyError: 'own'" in text and text.count("Traceback") == 1


# -- The report of bad files and its limit


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_report_lists_each_file_once_and_is_continued(tmp_path):
    path = tmp_path / "deep" / "bad.jsonl"
    report = BadFileReport(path, num_files=100)
    report.add([])
    assert not path.exists()
    report.add([("b\tc.mp4", "first\nerror"), ("a.mp4", "empty")])
    report.add([("b\tc.mp4", "second error")])
    again = BadFileReport(path, num_files=100)
    assert len(again) == 2
    again.add([("a.mp4", "z"), ("c", "w")])
    assert read(path) == [
        {"path": "a.mp4", "count": 2, "error": "empty"},
        {"path": "b\tc.mp4", "count": 2, "error": "first\nerror"},
        {"path": "c", "count": 1, "error": "w"},
    ]
    assert [p.name for p in path.parent.iterdir()] == ["bad.jsonl"]  # nothing half-written is left


def test_limit_counts_distinct_files(tmp_path):
    for path in (tmp_path / "bad.jsonl", None):
        report = BadFileReport(path, num_files=40, max_bad_share=0.05)
        report.add([("a", "broken")] * 10)
        report.add([("b", "empty")])  # 2 of 40 is exactly 5 %: allowed
        with pytest.raises(TooManyBadFilesError) as error:
            report.add([("c", "gone")])
        for word in ("3 of 40", "0.05", "a: broken", "b: empty", "c: gone", str(path)):
            assert word in str(error.value)
    assert len(read(tmp_path / "bad.jsonl")) == 3  # written before the run stops


def test_wrong_arguments_and_reports(tmp_path):
    (tmp_path / "x").write_text("no json\n")
    for options, word in (
        (dict(num_files=3, max_bad_share=1.5), r"1\.5"),
        (dict(num_files=0), "num_files"),
        (dict(num_files=3), "line 1"),
    ):
        with pytest.raises(ValueError, match=word):
            BadFileReport(tmp_path / "x", **options)
