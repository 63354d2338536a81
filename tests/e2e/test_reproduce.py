"""Every command of docs/reproduce.md, in order, on small folders with exactly the official layouts.

The commands are changed only to make them small: one process instead of eight, a narrow network,
few pixels, frames and epochs. The two that run whole sweeps are left out:
tests/commands/test_sweep.py runs a small one.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from helpers.official_trees import (
    KINETICS_CLASSES,
    make_hmdb51,
    make_kinetics,
    make_ssv2,
    make_ucf101,
)
from helpers.page_commands import blocks, run_in_process, small_options

from sce_video.evaluation import load_features

pytestmark = pytest.mark.slow

EPOCHS = 1
CLASSES = 4  # of every generated data set


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [line for line in lines if line.strip()]


def runs_a_sweep(command: str) -> bool:
    """Whether a command trains the 24 networks of the ablations, and does not only list them."""
    return "sweep" in command.split("configs/")[0] and not re.search(r"--(list|report)$", command)


def shrunk(command: str, repo: Path) -> list[str]:
    """The words of a command that does the same on small data."""
    words = shlex.split(command)
    if "sweep" in words:
        return words
    if "--k200" in words:  # the generated data set has four classes
        words[words.index("--k200") :] = ["--k200-classes", "k200.txt"]
    words = [re.sub(r"epoch_\d+\.pth$", f"epoch_{EPOCHS}.pth", word) for word in words]
    if words[0] == "bash":
        words[words.index("8")] = "1"
    configs = [word for word in words if re.fullmatch(r"configs/.*\.py", word)]
    if configs:
        if "train.sh" in command or "finetune-splits" in command:
            words += ["--amp", "float32"]  # fp16 on a CPU would take minutes
        words += ["--cfg-options", *small_options(repo / configs[0], EPOCHS, CLASSES)]
    return words


@pytest.fixture(scope="module")
def folder(repo, tmp_path_factory):
    """A folder with ``tools``, ``configs`` and ``data``, as the page describes it."""
    root = tmp_path_factory.mktemp("reproduce")
    (root / "tools").symlink_to(repo / "tools")
    (root / "configs").symlink_to(repo / "configs")
    make_kinetics(root / "data/kinetics400")
    (root / "k200.txt").write_text("".join(f"{name}\n" for name in KINETICS_CLASSES))
    make_ucf101(root / "data/ucf101")
    make_hmdb51(root / "data/hmdb51")
    make_ssv2(root / "data/ssv2")
    return root


def test_every_command_of_the_page(repo, folder, monkeypatch):
    monkeypatch.chdir(folder)
    launched = {"tools/dist_train.sh"}  # runs in test_dist_train.py
    page = commands(repo / "docs/reproduce.md")
    assert len(page) > 20 and sum(map(runs_a_sweep, page)) == 2
    for command in page:
        if runs_a_sweep(command):
            continue
        run_in_process(shrunk(command, repo), folder, launched)
    check_what_came_out(folder / "work_dirs")


def check_what_came_out(work: Path) -> None:
    results = {p.parent.name: json.loads(p.read_text()) for p in work.rglob("results.json")}
    linear = results["r3d18_8xb64-8x224-60e_k400"]
    assert (linear["protocol"]["clips"], linear["protocol"]["crops"]) == (10, 3)
    ssv2 = results["r3d50_8xb8-8x224-22e_ssv2"]
    assert (ssv2["protocol"]["clips"], ssv2["protocol"]["crops"]) == (1, 1)
    for data in ("ucf101", "hmdb51"):
        summary = json.loads(
            (work / f"r3d18_1xb64-8x224-200e_{data}_splits/splits.json").read_text()
        )
        assert list(summary["splits"]) == ["1", "2", "3"]
        assert 0 <= summary["mean"]["top1"] <= 1
        assert "retrieval_r1" in results[f"r3d18_8x224_{data}"]["metrics"]
    features, protocol = load_features(work / "features/ucf101_test.npz")
    assert features.features.shape == (len(features), 32) and protocol["clips"] == 10
    kept = json.loads((work / "features/ucf101_retrieval.json").read_text())
    direct = results["r3d18_8x224_ucf101"]["metrics"]
    assert kept["centred"]["R@1"] == pytest.approx(direct["retrieval_r1"])
    assert kept["plain"]["R@5"] == pytest.approx(direct["retrieval_plain_r5"])
    table = (work / "ablations/video_color.md").read_text()
    assert "| 0.75 | not run / 64.6 | not run / 86.8 | not run / 57.8 |" in table
    report = (work / "report.md").read_text()
    assert "not run" in report and (work / "report.html").is_file()
