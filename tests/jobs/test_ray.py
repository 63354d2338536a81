"""Jobs on a Ray cluster of two nodes on this machine, one of which is lost at the end."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys

import pytest
from helpers.job_fakes import Squares, WithSetup, calls, contents, items
from helpers.processes import kill_one

from sce_video.jobs import RecordStore, Workers, ray_cluster, run_job
from sce_video.utils.errors import UserError


@pytest.fixture(scope="module")
def cluster(repo):
    """A head with one core and another node with one; 8 s."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # Ray's 15 starves them beside other tests
        patch.setenv("PYTHONPATH", f"{repo}{os.pathsep}{repo / 'tests'}")
        made = Cluster(True, head_node_args={**small, "include_dashboard": False})
        made.second = made.add_node(**small)
        yield made
        made.shutdown()


def run(job, todo, path, cluster, timeout=20.0, count=None, **options):
    with RecordStore(path, job.name) as store:
        counts = run_job(job, todo, store, Workers(count, timeout, cluster.address), **options)
        return (counts.done, counts.failed, counts.kept), {entry.key: entry for entry in store}


def expected(count):
    return {f"{n % 3}/{n}.txt": f"{n * n}\n" * 50 for n in range(count)}


def test_outcomes_are_those_of_one_machine(cluster, tmp_path):
    job = Squares(tmp_path / "log", tmp_path / "out")
    words = {"1": "crash", "3": "hang", "4": "error", "6": "bad"}
    counts, records = run(job, items(12, words, output=True), tmp_path / "s", cluster, 1.0)
    assert counts == (8, 4, 0)
    failed = {key: entry.kind for key, entry in records.items() if not entry.done}
    assert failed == {"1": "crash", "3": "timeout", "4": "error", "6": "bad"}
    assert "SIGSEGV" in records["1"].reason and "KeyError" in records["4"].reason
    # what kills its process is tried twice, and nothing else is
    assert calls(job.log) == sorted([*map(str, range(12)), "1"], key=int)
    counts, records = run(job, items(12, output=True), tmp_path / "s", cluster)
    assert counts == (4, 0, 8) and calls(job.log) == ["1", "3", "4", "6"]
    assert contents(tmp_path / "out") == expected(12)


def test_a_bounded_number_of_items_is_in_progress(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_MOST_TOGETHER", 3)
    taken = seen = most = 0

    def many():
        nonlocal taken
        for item in items(60):
            taken += 1
            yield item

    def look(item, record):
        nonlocal seen, most
        most = max(most, taken - seen)
        seen += 1

    assert run(Squares(), many(), tmp_path / "s", cluster, on_record=look)[0] == (60, 0, 0)
    assert 4 < most <= 12  # two calls of up to three short items for each of two cores


@pytest.mark.slow
def test_processes_killed_at_random_moments_lose_and_double_nothing(cluster, tmp_path):
    """In turn processes of ours, which a server forks, and those of Ray that wait for them."""
    job = WithSetup(tmp_path / "log", tmp_path / "out", seconds=0.05)
    generator, seen, killed = random.Random(0), 0, 0

    def kill(item, record):  # by progress: a loaded machine must not kill faster than it works
        nonlocal seen, killed
        seen += 1
        if seen % 6 == 0 and killed < 4:  # Ray takes seconds to start another one
            killed += kill_one(os.getpid(), ("forkserver", "ray")[killed % 2], generator)

    counts, records = run(job, items(40, output=True), tmp_path / "s", cluster, on_record=kill)
    assert killed >= 4 and len(records) == 40 == counts[0] + counts[1]
    assert counts[1] <= 2  # only an item that was hit twice
    counts, records = run(job, items(40, output=True), tmp_path / "s", cluster)
    assert len(records) == 40 and all(entry.done for entry in records.values())
    assert contents(tmp_path / "out") == expected(40)


def test_another_version_of_the_package_is_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "__version__", "9.9")
    with pytest.raises(
        UserError, match=r"has sce_video \d.*, but this machine has 9\.9\. Install the same"
    ):
        run(Squares(), items(3), tmp_path / "s", cluster)


def test_no_cluster_and_no_ray(monkeypatch, unused_port):
    ray = pytest.importorskip("ray")

    def find_nothing(**_options):
        raise ConnectionError("Could not find any running Ray instance.\nStart one.")

    # Another test may have a cluster, which "auto" would find.
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", find_nothing)
    address = f"127.0.0.1:{unused_port}"
    for given, message in (
        ("auto", "cannot connect to the Ray cluster 'auto': Could not find any running"),
        (address, f"there is no Ray cluster at '{address}'"),
    ):
        with RecordStore(None, "squares") as store, pytest.raises(UserError, match=message):
            run_job(Squares(), items(3), store, Workers(ray=given))
    monkeypatch.setitem(sys.modules, "ray", None)
    with RecordStore(None, "squares") as store:
        with pytest.raises(UserError, match=r"pip install sce-video\[cluster\]"):
            run_job(Squares(), items(3), store, Workers(ray="auto"))


@pytest.fixture
def unused_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.slow
def test_a_lost_node_costs_no_item(cluster, tmp_path):
    node = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    job = WithSetup(tmp_path / "log", tmp_path / "out", seconds=0.1)
    seen = []

    def lose(item, record):
        seen.append(item.key)
        if len(seen) == 10:
            cluster.remove_node(node, allow_graceful=False)

    counts, records = run(job, items(40, output=True), tmp_path / "s", cluster, on_record=lose)
    assert counts == (40, 0, 0) and len(records) == 40 == len(set(seen))
    assert contents(tmp_path / "out") == expected(40)


def test_the_end_of_the_driver_is_named_and_ray_not_imported_without_need():
    """Ray ends it at once with the raylet of its machine; another process says so."""
    code = """
import os, signal, sys
import sce_video.commands.verify, sce_video.jobs
assert "ray" not in sys.modules
from sce_video.jobs.ray_cluster import watched
with watched():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode != 0
    assert "raylet) has ended" in found.stderr and "The same command resumes" in found.stderr
