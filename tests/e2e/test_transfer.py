"""From an official download and a checkpoint of the authors to a transfer result, tool by tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.run_tool import load, prepare
from helpers.transfer_trees import TREES

from sce_video.evaluation import load_features
from sce_video.interop.weights.image_networks import to_layout
from sce_video.registry import MODELS
from sce_video.reporting.report_content import assign_results
from sce_video.reporting.result_files import collect_results

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).resolve().parents[2] / "configs/downstream/transfer"
SMALL = [
    "--cfg-options", "visualizer=None", "model.backbone.depth=18",
    "model.backbone.base_channels=8", "test_dataloader.num_workers=0",
    "test_dataloader.batch_size=8",
]  # fmt: skip


def run(tool: str, *words: object) -> None:
    assert load(tool).main([str(word) for word in words]) == 0


@pytest.mark.parametrize(
    ("name", "recipe", "protocol", "metric"),
    [
        ("dtd", "r50_many_shot", ["linear", "--set", "dtd"], "many_shot_top1"),
        ("voc2007", "r50_voc07_svm", ["svm", "--shots", "full"], "low_shot_map_full"),
    ],
)
def test_from_archive_and_checkpoint_to_number(name, recipe, protocol, metric, tmp_path):
    torch.manual_seed(0)
    network = MODELS.build(dict(type="ResNet2d", depth=18, base_channels=8))
    theirs = to_layout(network.state_dict(), "eztorch")
    torch.save({"state_dict": theirs, "epoch": 200}, tmp_path / "authors.ckpt")
    words = [tmp_path / "authors.ckpt", tmp_path / "sce.pth", "--layout", "eztorch"]
    run("convert/from_layout", *words)
    root = TREES[name][0](tmp_path / "data")
    assert prepare(name, root, "--no-check") == 0
    files = []
    for part in ("train", "val", "test"):
        files += [f"--{part}", tmp_path / f"{part}.npz"]
        run(
            "embed", root, "--config", CONFIGS / f"{recipe}.py",
            "--checkpoint", tmp_path / "sce.pth", "--ann-file", root / f"lists/{part}.txt",
            "--out", tmp_path / f"{part}.npz", *SMALL,
        )  # fmt: skip
    features, provenance = load_features(tmp_path / "test.npz")
    listed = (root / "lists/test.txt").read_text().splitlines()
    assert features.values.shape == (len(listed), 64)
    assert provenance["checkpoint"]["path"] == str(tmp_path / "sce.pth")
    steps = [step["type"] for step in provenance["test"]["pipeline"]]
    assert steps == ["LoadImage", "PillowResizeCenterCrop", "PackClips"]
    out = tmp_path / "results.json"
    labels = ["--labels", root / "lists"] if name == "voc2007" else []
    run("transfer", *protocol, *files, *labels, "--json", out)
    content = json.loads(out.read_text())
    # Classes differ in colour, which random weights keep: far above chance.
    assert content["metrics"][metric] > {"dtd": 0.6, "voc2007": 0.3}[name]
    assert content["protocol"]["images"]["test"] == len(listed)
    benchmark = content["protocol"]["benchmark"]
    assert (benchmark["dataset"], benchmark["protocol"]) == (
        name,
        content["protocol"]["protocol_name"],
    )
    (other,) = assign_results(collect_results([out])).others
    reasons = "; ".join(other.reasons)
    assert "sce.pth has no record of its training" in reasons
    assert f"{len(listed)} images, published" in reasons and "training images" in reasons
