"""Every finding of the doctor, provoked."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace

import av
import pytest
from helpers.training import make_videos, planned_pretraining
from packaging.version import Version

from sce_video.commands.main import main
from sce_video.options.prepare import DoctorOptions
from sce_video.runs import machine_checks
from sce_video.runs.choices import Machine
from sce_video.runs.folder_facts import examine_folder
from sce_video.runs.machine_checks import FAILURE, OK, WARNING
from sce_video.runs.planned_training import Timing

GIB = 2**30


def test_packages_and_a_bad_cudnn():
    missing = "mmengine is not installed. Run pip install mmengine"
    (problem,) = machine_checks.check_packages([missing])
    assert (problem.level, problem.advice) == (FAILURE, "pip install mmengine")
    (here,) = machine_checks.check_packages()
    assert here.level == OK and "torch" in here.what
    for torch, cudnn, level in (
        ("2.9.1", 91002, FAILURE),
        ("2.9.1", 91500, OK),
        ("2.13.0", 91002, OK),
    ):
        assert machine_checks.check_cudnn(Version(torch), cudnn).level == level
    assert machine_checks.check_cudnn(Version("2.9.1"), None) is None


def test_several_gpus_need_nccl():
    assert machine_checks.check_nccl(0, False) is machine_checks.check_nccl(2, True) is None
    assert machine_checks.check_nccl(2, False).level == machine_checks.FAILURE
    assert machine_checks.check_nccl(1, False).level == machine_checks.WARNING


def test_gpus():
    for names, cuda_build, devices, level, word in (
        (["H"], True, True, OK, "H"),
        ([], False, True, FAILURE, "CPU build"),
        ([], True, True, FAILURE, "cannot use"),
        ([], False, False, WARNING, "no GPU"),
    ):
        found = machine_checks.check_gpu(names, cuda_build, devices)
        assert found.level == level and word in found.what
        assert bool(found.advice) == (level != OK)


def test_cores_for_the_workers_of_each_gpu():
    for usable, gpus, level in ((4, 0, OK), (104, 8, OK), (64, 8, WARNING), (1, 2, WARNING)):
        found = machine_checks.check_cores(usable, 128, gpus)
        assert found.level == level
        assert f"cores: {usable} of 128, limited by the affinity" in found.what
        assert bool(found.advice) == (level != OK)
    found = machine_checks.check_cores(64, 64, 8)
    assert " of 64" not in found.what and "8 GPUs use 104" in found.what
    assert "At most 8 loader workers per GPU" in found.what


def test_shared_memory_is_computed_from_the_gpus():
    """Two batches of 154 MB under way for each of 12 workers."""
    for gpus, amount, level in ((1, 9, OK), (8, 16, WARNING), (8, 28, OK), (0, 9, OK)):
        found = machine_checks.check_amount("shared memory", amount * GIB, gpus=gpus)
        assert found.level == level
    advice = machine_checks.check_amount("shared memory", 16 * GIB, gpus=8).advice
    assert "--ipc=host, or --shm-size=28g" in advice
    assert math.ceil(8 * 12 * 2 * 64 * 2 * 8 * 224 * 224 * 3 / GIB) == 28


def test_amounts():
    for name, amounts in {
        "shared memory": (GIB // 2, 2 * GIB, 9 * GIB),
        "open files": (100, 1024, 65536),
    }.items():
        found = [machine_checks.check_amount(name, amount) for amount in amounts]
        assert [finding.level for finding in found] == [FAILURE, WARNING, OK]
        assert [bool(finding.advice) for finding in found] == [True, True, False]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    root = make_videos(tmp_path_factory.mktemp("videos"), count=10)
    (root / "class0/broken.mp4").write_bytes(b"no video")
    return root


def test_too_many_unreadable_videos_are_a_failure(tmp_path, videos):
    for name in ("a", "b"):
        shutil.copy(next(videos.rglob("v00.mp4")), tmp_path / f"{name}.mp4")
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    options = DoctorOptions(videos=str(tmp_path), out=str(tmp_path / "runs"), report=True)
    *_, last = machine_checks.examine(options)
    assert last.level == machine_checks.FAILURE and "1 of 3 examined videos in VIDEOS" in last.what
    assert str(tmp_path) not in last.what


def test_videos(videos):
    facts = examine_folder(str(videos))
    levels = [(f.level, f.what) for f in machine_checks.check_video_files(facts)]
    assert [level for level, _ in levels] == [OK, WARNING] and "broken.mp4" in levels[1][1]
    large = replace(facts, unreadable=(), key_distance=250.0, height=1080, width=1920)
    found = list(machine_checks.check_video_files(large))
    assert [finding.level for finding in found] == [OK, WARNING, WARNING]
    assert all("sce-video repack" in finding.advice for finding in found[1:])


def test_cores_that_cannot_feed_a_gpu(videos, tmp_path):
    plan = planned_pretraining(videos, tmp_path, width=4, size=32, workers=0)
    slow = Timing(step=0.1, sample=0.05, batch=32, samples=640, on_gpu=True)
    starving = replace(plan, timing=slow, machine=Machine(cores=8, gpu="A"))
    found = machine_checks.check_loading(starving)
    assert found.level == WARNING and "16 loader workers" in found.what
    assert (
        machine_checks.check_loading(replace(starving, machine=Machine(cores=32, gpu="A"))).level
        == OK
    )


def test_the_command(videos, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    monkeypatch.setattr(machine_checks, "_SECONDS_PER_BACKEND", 0.1)
    assert main(["doctor", "--videos", str(videos), "--out", str(tmp_path / "new/runs")]) == 0
    shown = capsys.readouterr().out
    for word in ("Python", "FFmpeg", "shared memory", "11 videos", "clips of 8 frames a second"):
        assert word in shown
    monkeypatch.setattr(
        machine_checks, "check_amount", lambda *_, **__: machine_checks.Finding(FAILURE, "none")
    )
    assert main(["doctor"]) == 1


def test_a_report_names_no_file(videos, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    monkeypatch.setattr(machine_checks, "_SECONDS_PER_BACKEND", 0.1)
    assert main(["doctor", "--report", "--videos", str(videos), "--out", str(tmp_path / "r")]) == 0
    shown = capsys.readouterr().out
    assert "11 videos in VIDEOS" in shown and "FILE: " in shown and f"av=={av.__version__}" in shown
    for private in (str(videos), "broken", str(tmp_path)):
        assert private not in shown
