"""Record what the commands compute, to compare a refactoring with the commit before it.

    python tools/dev/golden.py record FILE.json [--only pretrain index]
    python tools/dev/golden.py compare OLD.json NEW.json

Every entry is a short text or a SHA-256 digest of numbers: losses and weights after twelve steps of
each method, a resumed training run, metrics, features, search results, duplicates, repacked frames,
exported weights, and the exit status and last line of wrong command lines. Digests are equal only
on the same machine with the same packages, so record both files there.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sce_video.utils.command import command
from sce_video.utils.files import write_text

REPO = Path(__file__).resolve().parents[2]
METHODS = ("sce", "moco", "moco_v3", "ressl", "simclr", "byol", "swav", "lejepa")
Entries = dict[str, Any]


class Workspace:
    """A scratch folder with generated videos, and a trained run that later entries share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.videos = folder / "videos"
        self.train, self.test = self.videos / "train", self.videos / "test"
        self.run = folder / "run_sce"

    def sce(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run ``sce-video`` in the scratch folder."""
        env = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
        env |= {"SCE_VIDEO_CACHE": str(self.folder / "cache")}
        command = [sys.executable, "-m", "sce_video", *map(str, words)]
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )

    def must(self, *words: object) -> str:
        """Run ``sce-video`` and return what it printed.

        Raises:
            RuntimeError: If the command ends with a status other than 0.
        """
        done = self.sce(*words)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr[-2000:]}")
        return done.stdout


def digest(*parts: bytes) -> str:
    """Return the first 16 hexadecimal digits of the parts' SHA-256."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


def digest_of_checkpoint(path: Path) -> str:
    """Return a digest of every tensor of a checkpoint's ``state_dict``, in the order of names."""
    import torch

    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return digest(*(state[name].contiguous().numpy().tobytes() for name in sorted(state)))


def digest_of_arrays(path: Path) -> Entries:
    """Return a digest of every numeric array of an ``.npz`` file, and its other arrays as text."""
    import numpy as np

    with np.load(path) as file:
        return {
            name: digest(file[name].tobytes())
            for name in sorted(file.files)
            if file[name].dtype.kind in "fiu"
        }


def losses(run: Path) -> list[str]:
    """Return the logged losses of a run as exact hexadecimal floats."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = (json.loads(line) for line in lines)
    return [float(row["loss"]).hex() for row in rows if "loss" in row]


def train_words(work: Workspace, method: str, run: Path) -> list[object]:
    """Return the command line that trains a method's small recipe for twelve steps."""
    return [
        *("train", f"configs/{method}/{method}_r3d18_folder_small.py", "--work-dir", run),
        *("--seed", 7, "--cfg-options", f"train_dataloader.dataset.data_root={work.train}"),
        *("train_dataloader.batch_size=8", "train_dataloader.sampler.min_samples=48"),
        *("train_cfg.max_epochs=2", "default_hooks.logger.interval=1"),
        *("default_hooks.checkpoint.interval=1", "default_hooks.checkpoint.max_keep_ckpts=5"),
    ]


def record_methods(work: Workspace) -> Entries:
    """Train twelve steps of every method."""
    found: Entries = {}
    for method in METHODS:
        run = work.folder / f"run_{method}"
        words = train_words(work, method, run)
        words[1] = REPO / str(words[1])
        work.must(*words)
        found[method] = {
            "losses": losses(run),
            "weights": digest_of_checkpoint(run / "epoch_2.pth"),
        }
    return found


def record_resume(work: Workspace) -> Entries:
    """Resume the run of SCE from its first epoch, and compare with the uninterrupted one."""
    resumed = work.folder / "run_resumed"
    shutil.copytree(work.run, resumed, ignore=lambda _, names: {*names} - {"epoch_1.pth"})
    words = train_words(work, "sce", resumed)
    words[1] = REPO / str(words[1])
    work.must(*words[:4], "--resume", *words[4:])
    return {
        "weights": digest_of_checkpoint(resumed / "epoch_2.pth"),
        "equal": digest_of_checkpoint(resumed / "epoch_2.pth")
        == digest_of_checkpoint(work.run / "epoch_2.pth"),
    }


def record_evaluate(work: Workspace) -> Entries:
    """Evaluate the run by kNN, linear probe and retrieval, and without labels."""
    out = work.folder / "results.json"
    protocols = ("knn", "linear", "retrieval", "time", "rankme", "lidar", "clip_retrieval")
    source = ("--test", work.test, "--gallery", work.train, "--out", out)
    work.must("evaluate", work.run, *source, "--protocols", *protocols)
    metrics = json.loads(out.read_text(encoding="utf-8"))["metrics"]
    return {name: repr(value) for name, value in sorted(metrics.items())}


def record_find(work: Workspace) -> Entries:
    """Index videos and windows, search them, and look for near-duplicates and copies."""
    found: Entries = {}
    for name, more in (("videos", ()), ("windows", ("--windows", "0.5s", "--stride", "0.25s"))):
        index = work.folder / f"index_{name}"
        source = ("--checkpoint", work.run, "--out", index, "--workers", 0)
        work.must("index", work.test, *source, *more)
        found[f"features of {name}"] = digest_of_arrays(index / "features.npz")
        query = sorted(work.test.rglob("*.mp4"))[3]
        answer = work.folder / f"search_{name}.json"
        work.must("search", query, "--index", index, "--json", answer)
        found[f"search of {name}"] = json.loads(answer.read_text(encoding="utf-8"))
    curated = work.folder / "curated"
    work.must("curate", work.folder / "index_videos", "--out", curated, "--copies", "all")
    for file in sorted(curated.glob("*.csv")):
        rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
        found[f"curate {file.name}"] = digest(json.dumps(rows).encode())
    return found


def record_embed(work: Workspace) -> Entries:
    """Embed a folder, once as it is, once from repacked files and once from a table."""
    found: Entries = {}
    repacked, table = work.folder / "repacked", work.folder / "table.lance"
    work.must("repack", work.test, repacked, "--workers", 1)
    work.must("import", work.test, table)
    for name, videos in (("files", work.test), ("repacked", repacked), ("table", table)):
        out = work.folder / f"embedded_{name}.npz"
        work.must("embed", videos, "--checkpoint", work.run, "--out", out, "--workers", 0)
        found[name] = digest_of_arrays(out)
    return found


def record_export(work: Workspace) -> Entries:
    """Export the backbone as safetensors."""
    out = work.folder / "exported"
    work.must("export", work.run, "--to", "pretrained", "--out", out)
    files = sorted(out.rglob("*.safetensors")) if out.is_dir() else [out]
    return {file.name: digest(file.read_bytes()) for file in files}


def record_errors(work: Workspace) -> Entries:
    """Record the exit status and the last line of wrong command lines."""
    sys.path[:0] = [str(REPO), str(REPO / "tests")]
    from commands.test_wrong_input import CASES

    folder = work.folder / "wrong"
    for name in ("V/a.mp4", "R/epoch_1.pth", "I/features.npz", "E/notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    found: Entries = {}
    for case in CASES:
        done = work.sce(*case.split())
        found[case] = [done.returncode, (done.stderr.splitlines() or [""])[-1]]
    return found


#: The entries, each after the entries that it needs.
RECORDS: dict[str, Callable[[Workspace], Entries]] = {
    "methods": record_methods,
    "resume": record_resume,
    "evaluate": record_evaluate,
    "find": record_find,
    "embed": record_embed,
    "export": record_export,
    "errors": record_errors,
}


def record(out: Path, only: list[str]) -> None:
    """Compute the entries and write them to a JSON file."""
    from sce_video.data_tools.generated import generate_toy_actions

    with tempfile.TemporaryDirectory() as name:
        work = Workspace(Path(name))
        generate_toy_actions(work.videos, {"train": 48, "test": 24}, workers=1)
        found: Entries = {}
        for entry, compute in RECORDS.items():
            if not only or entry in only:
                print(f"golden: {entry}", file=sys.stderr, flush=True)
                found[entry] = compute(work)
                text = json.dumps(found, indent=1).replace(name, "WORK")
                write_text(out, text + "\n")


def flattened(value: Any, name: str = "") -> Entries:
    """Return the leaves of nested dicts by the path of their keys."""
    if not isinstance(value, dict):
        return {name: value}
    leaves: Entries = {}
    for key, item in value.items():
        leaves |= flattened(item, f"{name} / {key}" if name else key)
    return leaves


def compare(old: Path, new: Path) -> int:
    """Print every entry that differs; return 1 if any does."""
    before, after = (flattened(json.loads(path.read_text(encoding="utf-8"))) for path in (old, new))
    names = [name for name in before | after if before.get(name) != after.get(name)]
    for name in names:
        print(f"{name}\n  old: {before.get(name)}\n  new: {after.get(name)}")
    print(f"{len(before | after) - len(names)} of {len(before | after)} entries are equal")
    return 1 if names else 0


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--only", nargs="+", choices=RECORDS, default=[])
    comparing = actions.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    args = parser.parse_args(argv)
    if args.action == "compare":
        return compare(args.old, args.new)
    record(args.out, args.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
