"""run_job: what is due, what is recorded, and what a crash or a kill leaves."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.job_fakes import Squares, WithOwnParts, WithSetup, calls, contents, items
from helpers.own_parts import registries_restored
from helpers.processes import wait_until
from helpers.stores import count_records

from sce_video.jobs import (
    BatchJob,
    BusyStoreError,
    Item,
    RecordStore,
    RunError,
    StorageError,
    Workers,
    file_state,
    iterate_job,
    process_pool,
    run_job,
)
from sce_video.jobs.process_pool import PackedJob, run_local
from sce_video.utils.errors import UserError
from sce_video.utils.own_parts import OwnModules, own_imports, own_modules


def run(job, todo, path, timeout=20.0, workers=2, **options):
    with RecordStore(path, job.name) as store:
        counts = run_job(job, todo, store, Workers(workers, timeout), **options)
        return (counts.done, counts.failed, counts.kept), {entry.key: entry for entry in store}


def test_finished_items_are_never_redone(tmp_path):
    job, path = Squares(tmp_path / "log"), tmp_path / "s"
    counts, records = run(job, items(20), path)
    assert counts == (20, 0, 0) and calls(job.log) == [str(n) for n in range(20)]
    assert {key: entry.facts["square"] for key, entry in records.items()} == {
        str(n): n * n for n in range(20)
    }
    assert run(job, items(22), path)[0] == (2, 0, 20) and calls(job.log) == ["20", "21"]
    # a changed source, other settings
    changed = [Item("3", {"size": 4}), *items(3)]
    assert run(job, changed, path)[0] == (1, 0, 3) and calls(job.log) == ["3"]
    other = Squares(tmp_path / "log", settings={"crf": (1, 2)})
    assert run(other, items(5), path)[0] == (5, 0, 0) and len(calls(job.log)) == 5
    assert run(other, items(5), path)[0] == (0, 0, 5) and calls(job.log) == []
    assert run(other, items(2), path, force=True)[0] == (2, 0, 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_records_come_in_the_order_of_the_items(tmp_path, workers):
    """Also where a crash delays one of them; nothing is stored."""
    job, todo = Squares(tmp_path / "log"), items(12, {"2": "crash", "7": "bad"})
    found = [(item.key, r) for item, r in iterate_job(job, todo, Workers(workers, 20.0))]
    assert [key for key, _ in found] == [str(number) for number in range(12)]
    assert [key for key, record in found if not record.done] == ["2", "7"]
    assert all(record.facts["square"] == int(key) ** 2 for key, record in found if record.done)


def test_every_failure_is_named_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(process_pool, "_GRACE", 0.2)
    job, path = Squares(tmp_path / "log"), tmp_path / "s"
    words = {"1": "crash", "3": "hang", "4": "error", "6": "bad"}
    counts, records = run(job, items(8, words), path, timeout=2.0)
    assert counts == (4, 4, 0)
    failed = {key: entry.kind for key, entry in records.items() if not entry.done}
    assert failed == {"1": "crash", "3": "timeout", "4": "error", "6": "bad"}
    assert "SIGSEGV" in records["1"].reason and "KeyError" in records["4"].reason
    assert records["6"].reason == "cannot be read" and records["3"].time_limit == 2.0
    calls(job.log)
    counts, records = run(job, items(8), path)
    assert counts == (4, 0, 4) and calls(job.log) == ["1", "3", "4", "6"]
    assert all(entry.done for entry in records.values())


def test_without_processes_the_outcomes_are_the_same(tmp_path):
    job, path = Squares(tmp_path / "log", tmp_path / "out"), tmp_path / "s"
    words = {"4": "error", "6": "bad"}
    counts, records = run(job, items(8, words, output=True), path, workers=0)
    assert counts == (6, 2, 0) and records["3"].facts == {"square": 9}
    assert {r.kind for r in records.values() if not r.done} == {"error", "bad"}
    assert {line.split()[1] for line in Path(job.log).read_text().splitlines()} == {
        str(os.getpid())
    }
    assert run(job, items(8, output=True), path, workers=0)[0] == (2, 0, 6)
    assert len(contents(job.folder)) == 8
    with pytest.raises(UserError, match="with setup cannot start: OSError: no weights"):
        run(WithSetup(settings={"broken": True}), items(3), tmp_path / "t", workers=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_fails_all_items_ends_the_run(tmp_path, workers):
    words = {"2": "all"}
    with pytest.raises(RunError, match="the network fails"):
        run(Squares(), items(4, words), tmp_path / "s", workers=workers)
    counts, records = run(Squares(), items(4), tmp_path / "s", workers=workers)
    assert counts[0] + counts[2] == 4 and counts[2] >= 2 and all(r.done for r in records.values())


def test_a_missing_source_fails_unless_it_was_finished(tmp_path):
    job, path = Squares(tmp_path / "log"), tmp_path / "s"
    run(job, items(1), path)
    counts, records = run(job, [Item("0", None), Item("1", None)], path)
    assert counts == (0, 1, 1) and records["0"].done and records["1"].kind == "missing"
    assert run(job, [Item("0", None)], path, force=True)[0] == (0, 0, 1)


def test_outputs_are_complete_or_absent(tmp_path):
    job = Squares(tmp_path / "log", tmp_path / "out")
    counts, records = run(job, items(9, {"4": "error", "5": "crash"}, output=True), tmp_path / "s")
    assert counts == (7, 2, 0)
    done = [n for n in range(9) if n not in (4, 5)]
    assert contents(job.folder) == {f"{n % 3}/{n}.txt": f"{n * n}\n" * 50 for n in done}
    assert records["8"].output == "2/8.txt" and records["8"].output_bytes == 150
    calls(job.log)
    Path(job.folder, "2/8.txt").write_text("cut")
    Path(job.folder, "0/0.txt").unlink()
    assert run(job, items(9, output=True), tmp_path / "s")[0] == (4, 0, 5)
    assert calls(job.log) == ["0", "4", "5", "8"]
    # an output of an item that fails now is removed, one that another wrote is not
    Path(job.folder, "0/9.txt").write_text("theirs")
    changed = [Item("8", {}, "bad", "2/8.txt"), Item("9", {}, "bad", "0/9.txt")]
    assert run(job, changed, tmp_path / "s")[0] == (0, 2, 0)
    assert "2/8.txt" not in contents(job.folder) and "0/9.txt" in contents(job.folder)


class Reading(Squares):
    """Its source is a file beside the output."""

    def source(self, item):
        return file_state(Path(self.folder, item.key))

    def process(self, item):
        facts = super().process(item)
        Path(self.folder, item.key).write_text("longer")
        return facts


def test_a_source_that_changes_meanwhile_fails(tmp_path):
    (tmp_path / "7").write_text("old")
    job = Reading(folder=tmp_path)
    counts, records = run(job, [Item("7", job.source(Item("7", {})))], tmp_path / "s")
    assert counts == (0, 1, 0) and records["7"].kind == "changed"


def test_a_full_disk_ends_the_run_and_fails_no_item(tmp_path):
    job = Squares(folder=tmp_path / "out")
    with pytest.raises(StorageError, match="the disk is full"):
        run(job, items(9, {"4": "full"}, output=True), tmp_path / "s", workers=1)
    with RecordStore(tmp_path / "s", job.name) as store:
        assert [(entry.key, entry.done) for entry in store] == [(key, True) for key in "0123"]
    assert len(contents(job.folder)) == 4


def test_setup_runs_once_per_process(tmp_path):
    _, records = run(WithSetup(tmp_path / "log"), items(10), tmp_path / "s", workers=1)
    assert all(entry.facts["same_process"] for entry in records.values())
    with pytest.raises(RuntimeError, match="with setup cannot start: OSError: no weights"):
        run(WithSetup(settings={"broken": True}), items(3), tmp_path / "s")


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_processes_import_the_modules_of_the_command_line(tmp_path, monkeypatch, packed):
    """A packed job is what an actor of Ray gets, with the modules that it names."""
    text = "from sce_video.registry import TRANSFORMS\n\n@TRANSFORMS.register_module()\n"
    (tmp_path / "part_of_a_job.py").write_text(text + "class PartOfAJob:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    job: BatchJob | PackedJob = WithOwnParts()
    with registries_restored(tmp_path), own_imports(["--import", "part_of_a_job"]):
        if packed:
            job = PackedJob(pickle.dumps(job), WithOwnParts.__module__, own_modules())
        ((_, outcome),) = list(run_local(job, items(1), 1, 60.0))
    assert outcome.fault is None, outcome.detail
    assert "PartOfAJob" in outcome.value["parts"]  # other tests may have registered parts, too


def test_a_process_without_the_module_says_so(tmp_path):
    missing = OwnModules(("no_such_part",), ())
    job = PackedJob(pickle.dumps(WithOwnParts()), WithOwnParts.__module__, missing)
    ((_, outcome),) = list(run_local(job, items(1), 1, 60.0))
    assert outcome.fault == "setup" and "No module named 'no_such_part'" in outcome.detail


def test_a_killed_driver_is_resumed_and_a_second_one_refused(tmp_path, repo):
    script = f"""
import sys
sys.path.insert(0, {str(repo / "tests")!r})
from helpers.job_fakes import Squares, items
from sce_video.jobs import RecordStore, Workers, run_job
if __name__ == "__main__":
    job = Squares({str(tmp_path / "log")!r}, {str(tmp_path / "out")!r}, seconds=0.02)
    with RecordStore({str(tmp_path / "s")!r}, job.name) as store:
        run_job(job, items(200, output=True), store, Workers(2))
"""
    (tmp_path / "driver.py").write_text(script)
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py")])
    wait_until(lambda: driver.poll() or count_records(tmp_path / "s", "squares") >= 20)
    with pytest.raises(BusyStoreError, match="another run"):
        RecordStore(tmp_path / "s", "squares", wait=0.1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = count_records(tmp_path / "s", "squares")
    calls(tmp_path / "log")
    job = Squares(tmp_path / "log", tmp_path / "out")
    counts, records = run(job, items(200, output=True), tmp_path / "s")
    assert counts == (200 - done, 0, done) and 20 <= done < 200 and len(records) == 200
    assert len(contents(tmp_path / "out")) == 200  # no unfinished file of the killed run
    assert not [name for name in contents(tmp_path / "out") if os.path.basename(name)[0] == "."]


@pytest.mark.parametrize(("count", "timeout"), [(-1, 1), (1, 0), (None, float("nan"))])
def test_wrong_numbers_are_refused(count, timeout):
    with pytest.raises(ValueError, match="count|timeout"):
        Workers(count, timeout)
