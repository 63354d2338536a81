"""The crash of a loader worker names the file that it was reading, and may cost only that file."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import time

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


def view(results):
    return {
        "inputs": [torch.zeros(2, 4, 4, 3, dtype=torch.uint8)],
        **{key: results[key] for key in ("label", "index", "seed")},
    }


class CrashAt:
    """Kills its process at one of the videos, as a crash inside a decoder does."""

    def __init__(self, number: int, how: int) -> None:
        self.number, self.how = number, how

    def __call__(self, results):
        if results["index"] == self.number:
            os.kill(os.getpid(), self.how)
            time.sleep(10)  # the signal may go to another thread: a real crash stops this one
        return view(results)


def crash_message(loader):
    """The message of the WorkerCrashError that iterating over the loader raises.

    The iterator is collected here: as long as it exists, torch's SIGCHLD handler raises an error
    about its crashed worker whenever another child process ends, anywhere in the test session.
    """
    with pytest.raises(WorkerCrashError) as raised:
        with report_worker_crashes(loader):
            for _ in loader:
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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_file_being_read_is_named(folder, how, workers):
    dataset = VideoDataset(str(folder), pipeline=[CrashAt(3, how)])
    loader = DataLoader(Subset(dataset, range(6)), 2, num_workers=workers, collate_fn=collate_views)
    message = crash_message(loader)
    assert re.search(r"crashed while reading .*väg 3\.mp4", message)
    assert "väg 2.mp4" not in message and "sce-video verify" in message


def test_a_crash_outside_of_reading_names_no_file(folder):
    class KillsWhileCollating:
        def __call__(self, samples):
            os.kill(os.getpid(), signal.SIGKILL)

    dataset = VideoDataset(str(folder), pipeline=[view])
    loader = DataLoader(dataset, 2, num_workers=1, collate_fn=KillsWhileCollating())
    message = crash_message(loader)
    assert "while it was reading no file" in message and "lack of memory" in message


def test_a_crash_while_sending_a_batch_is_reported_too(folder, monkeypatch):
    """torch then raises a connection error, not its message for a crashed worker."""
    dataset = VideoDataset(str(folder), pipeline=[view])
    both = ConcatDataset([Subset(dataset, [0]), dataset])
    loader = DataLoader(both, 2, num_workers=1, collate_fn=collate_views)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    row = dataset.current_files._table[3].numpy()
    row[:8] = list(pid.to_bytes(8, "little"))
    row[8:13] = list(b"a.mp4")
    with pytest.raises(WorkerCrashError, match=f"process {pid}.*reading a.mp4: ConnectionReset"):
        with report_worker_crashes(loader):
            raise ConnectionResetError(104, "Connection reset by peer")
    os.waitpid(pid, 0)
    row[:8] = list(os.getpid().to_bytes(8, "little"))  # a running process is not reported
    monkeypatch.setattr("sce_video.datasets.loading.failures._PATIENCE", 0.1)
    with pytest.raises(ConnectionResetError), report_worker_crashes(loader):
        raise ConnectionResetError(104, "Connection reset by peer")


# -- evaluation goes on without the file --------------------------------------------------------


class CrashAtEach(CrashAt):
    """Kills its process at each of some videos."""

    def __init__(self, numbers: tuple[int, ...], how: int) -> None:
        self.numbers, self.how = numbers, how

    def __call__(self, results):
        self.number = results["index"] if results["index"] in self.numbers else -1
        return super().__call__(results)


def read_all(loader):
    """Indices and bad files of all batches, and the number of batches."""
    batches = list(batches_without_crashes(loader))
    indices = [int(i) for batch in batches for i in batch["index"]]
    failures = [pair for batch in batches for pair in batch["failures"]]
    return indices, failures, len(batches)


@pytest.mark.parametrize(("workers", "nested"), [(1, False), (2, True)])
def test_files_that_crash_a_worker_are_skipped(folder, workers, nested):
    crash = CrashAtEach((0, 3, 5), signal.SIGSEGV)
    dataset = VideoDataset(str(folder), pipeline=[crash], on_error="skip")
    loader = DataLoader(
        Subset(dataset, range(6)) if nested else dataset,
        2,
        num_workers=workers,
        collate_fn=collate_views,
    )
    indices, failures, count = read_all(loader)
    assert indices == [1, 2, 4] and count == 3
    assert [os.path.basename(path) for path, _ in failures] == [f"väg {i}.mp4" for i in (0, 3, 5)]
    for _, reason in failures:
        # A worker that crashes while a batch of it is being fetched breaks the connection.
        assert re.match(
            r"crashed the process that was reading it "
            r"\((is killed by signal: Segm.*|Connection\w+|EOFError)\)$",
            reason,
        )
    again = read_all(loader)  # the data set knows them now
    assert again[0] == indices and again[1] == failures


def test_single_samples_and_persistent_workers(folder):
    dataset = VideoDataset(
        str(folder), pipeline=[CrashAtEach((2,), signal.SIGKILL)], on_error="skip"
    )
    loader = DataLoader(
        dataset, None, num_workers=2, collate_fn=lambda sample: sample, persistent_workers=True
    )
    for _ in range(2):
        samples = list(batches_without_crashes(loader))
        assert [sample.get("index") for sample in samples] == [0, 1, None, 3, 4, 5]
    loader._iterator = None


def test_a_crash_never_interrupts_what_is_done_with_a_batch(folder):
    """torch's handler of SIGCHLD raises wherever the main process is."""
    crash = CrashAtEach((1,), signal.SIGKILL)
    dataset = VideoDataset(str(folder), pipeline=[crash], on_error="skip")
    loader = DataLoader(dataset, 1, num_workers=1, collate_fn=collate_views)
    handler = signal.getsignal(signal.SIGCHLD)
    seen = []
    for batch in batches_without_crashes(loader):
        end = time.monotonic() + 0.15
        while time.monotonic() < end:  # the worker crashes meanwhile
            pass
        seen.append(batch["index"].tolist())
    assert seen == [[0], [], [2], [3], [4], [5]]
    assert callable(handler) is False or signal.getsignal(signal.SIGCHLD) == handler


def test_crashes_are_errors_where_bad_files_are(folder):
    for on_error in ("raise", "replace"):
        dataset = VideoDataset(
            str(folder), pipeline=[CrashAtEach((3,), signal.SIGKILL)], on_error=on_error
        )
        loader = DataLoader(dataset, 2, num_workers=1, collate_fn=collate_views)
        with pytest.raises(WorkerCrashError, match=r"väg 3\.mp4") as raised:
            list(batches_without_crashes(loader))
        assert [os.path.basename(path) for path in raised.value.files] == ["väg 3.mp4"]
        del raised
        gc.collect()


def test_a_crash_without_a_file_is_an_error(folder):
    class KillsWhileCollating:
        def __call__(self, samples):
            os.kill(os.getpid(), signal.SIGKILL)

    dataset = VideoDataset(str(folder), pipeline=[view], on_error="skip")
    loader = DataLoader(dataset, 2, num_workers=1, collate_fn=KillsWhileCollating())
    with pytest.raises(WorkerCrashError, match="reading no file") as raised:
        list(batches_without_crashes(loader))
    del raised
    gc.collect()


# -- The report of bad files and its limit


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_report_lists_each_file_once_with_its_first_error(tmp_path):
    path = tmp_path / "deep" / "bad.jsonl"
    report = BadFileReport(path, num_files=100)
    report.add([])
    assert not path.exists()
    report.add([("b\tc.mp4", "first\nerror"), ("a.mp4", "empty")])
    report.add([("b\tc.mp4", "second error")])
    assert read(path) == [
        {"path": "a.mp4", "count": 1, "error": "empty"},
        {"path": "b\tc.mp4", "count": 2, "error": "first\nerror"},
    ]
    assert [p.name for p in path.parent.iterdir()] == ["bad.jsonl"]  # nothing half-written is left


def test_an_earlier_report_is_continued(tmp_path):
    path = tmp_path / "bad.jsonl"
    BadFileReport(path, num_files=100).add([("a", "x"), ("a", "x"), ("b", "y")])
    again = BadFileReport(path, num_files=100)
    assert len(again) == 2
    again.add([("a", "z"), ("c", "w")])
    assert {e["path"]: (e["count"], e["error"]) for e in read(path)} == {
        "a": (3, "x"), "b": (1, "y"), "c": (1, "w"),
    }  # fmt: skip


def test_limit_counts_distinct_files(tmp_path):
    report = BadFileReport(tmp_path / "bad.jsonl", num_files=40, max_bad_share=0.05)
    report.add([("a", "broken")] * 10)
    report.add([("b", "empty")])  # 2 of 40 is exactly 5 %: allowed
    with pytest.raises(TooManyBadFilesError) as error:
        report.add([("c", "gone")])
    for word in ("3 of 40", "0.05", "a: broken", "b: empty", "c: gone", "bad.jsonl"):
        assert word in str(error.value)
    assert len(read(tmp_path / "bad.jsonl")) == 3  # written before the run stops


def test_wrong_arguments_and_reports(tmp_path):
    with pytest.raises(ValueError, match=r"1\.5"):
        BadFileReport(tmp_path / "x", num_files=3, max_bad_share=1.5)
    with pytest.raises(ValueError, match="num_files"):
        BadFileReport(tmp_path / "x", num_files=0)
    (tmp_path / "x").write_text("no json\n")
    with pytest.raises(ValueError, match="line 1"):
        BadFileReport(tmp_path / "x", num_files=3)


def test_without_a_file(tmp_path):
    report = BadFileReport(None, num_files=10, max_bad_share=0.5)
    report.add([("a", "x")])
    assert len(report) == 1
