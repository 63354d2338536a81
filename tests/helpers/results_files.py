"""Result files as written by the tools, for tests."""

from __future__ import annotations

import json
from pathlib import Path

from sce_video.published import EPOCHS

K400 = "kinetics400"
VIDEOS = {
    ("ucf101", 1): 3783, ("ucf101", 2): 3734, ("ucf101", 3): 3696,
    ("hmdb51", 1): 1530, ("hmdb51", 2): 1530, ("hmdb51", 3): 1530,
    (K400, None): 19881, ("kinetics200", None): 4990, ("ssv2", None): 24777,
}  # fmt: skip


def results(
    metrics, protocol, dataset, network="r3d18", frames=8, size=224, source=K400, split=None,
    benchmark=None, changes=None,
):  # fmt: skip
    """The content of a results.json; ``changes`` to its protocol, None removes an entry."""
    one = dataset == "ssv2"
    stated = {
        "kind": "recognition",
        "benchmark": {
            "protocol": protocol,
            "dataset": dataset,
            "network": network,
            "frames": frames,
            "size": size,
            "pretrained_on": source,
            "pretraining": None if source is None else "sce",
            "pretraining_epochs": None if source is None else 200,
            **(benchmark or {}),
        },
        "benchmark_problems": {},
        "dataset": dataset,
        "split": split,
        "epochs": EPOCHS.get((protocol, dataset), 200),
        "checkpoint": {"path": "runs/epoch_60.pth", "sha256": "0123456789abcdef" * 4},
        "clips": 1 if one else 10,
        "crops": 1 if one else 3,
        "decoder": "av",
        "decoder_version": "av 18.1.0",
        "videos": VIDEOS.get((dataset, split), 100),
        "failures": 0,
    }
    if protocol == "detection":
        stated["test"] = {"films": 64}
    if protocol == "retrieval":
        stated["bank_videos"] = {"ucf101": 9537, "hmdb51": 3570}.get(dataset)
    for name, value in (changes or {}).items():
        stated[name] = value
        if value is None:
            del stated[name]
    return {"metrics": metrics, "protocol": stated, "failures": []}


def recalls(r1, r5, r10, plain=True):
    """Metrics of retrieval; those without centring are one point lower."""
    values = {"r1": r1, "r5": r5, "r10": r10}
    metrics = {f"retrieval_{k}": v for k, v in values.items()}
    if plain:
        metrics |= {f"retrieval_plain_{k}": v - 0.01 for k, v in values.items()}
    return metrics


def write(path: Path, content) -> Path:
    """Write JSON, or a text unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
