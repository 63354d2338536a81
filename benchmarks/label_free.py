"""Find which measure without labels selects the checkpoint with the best linear probe.

    python benchmarks/label_free.py WORK --weizmann4 FOLDER [--steps 300] [--json OUT]

Short training runs of all methods, and one with a hundred times the learning rate, use three sets:
toy actions and moving digits (both generated in WORK), and a folder with one class per sub-folder
whose file names identify a person. Each network is evaluated before the first step and after every
quarter by linear probe (the aim), kNN, RankMe, LiDAR, retrieval of another clip, and effective
rank. The measures without labels see videos that are not used for training. So does the probe,
which leaves one person out on the folder.

Spearman's correlation with the probe is ``all`` over the checkpoints of a set, and ``within`` as
the mean over training runs of the correlation of their own checkpoints. Keeping the best checkpoint
needs the latter. ``gain`` is the probe of the checkpoint that a measure selects, minus the probe of
the last one, in points. Intervals are a bootstrap over training runs, drawn within their set, with
2000 draws.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from scipy.stats import spearmanr

from sce_video.data_tools.generated import encode_h264, generate_toy_actions, write_digits
from sce_video.engine.config.load import load_config, options_of_settings
from sce_video.engine.recipes import methods
from sce_video.runs import configs, launch
from sce_video.utils.files import read_json_lines, write_bytes, write_json

AIM = "linear_top1"
MEASURES = ("clip_retrieval_r1", "lidar", "rankme", "effective_rank", "feature_std", "knn_top1")
HARMFUL, HARMED = 100, ("simclr",)  # factor of the learning rate, for these methods
_LABEL_FREE = ("ClipRetrieval", "LiDAR", "RankMe", "FeatureStatistics")


def moving_digits(root: Path, num_videos: dict[str, int], seed: int = 0) -> None:
    """Write ``root/PART/CLASS/NUMBER.mp4``: handwritten digits move over drifting noise."""
    write_digits(root / "images")
    for number, (part, count) in enumerate(num_videos.items()):
        rng = np.random.default_rng([seed, number])
        folders = sorted(path for path in (root / "images" / part).iterdir() if path.is_dir())
        files = [rng.permutation(np.array(sorted(folder.glob("*.png")))) for folder in folders]
        for index in range(count):  # of each class in turn
            file = files[index % len(files)][index // len(files)]
            digit = cv2.resize(cv2.imread(str(file)), (32, 32)).astype(np.float32)
            ground = cv2.GaussianBlur(
                rng.uniform(0, 160, (64, 104, 3)).astype(np.float32), (0, 0), 4
            )
            ends, frames = rng.uniform(0, 32, (2, 2)), []
            for t in np.linspace(0, 1, 40):
                frame = ground[:, int(40 * t) : int(40 * t) + 64].copy()
                y, x = ((1 - t) * ends[0] + t * ends[1]).astype(int)
                frame[y : y + 32, x : x + 32] += digit
                frames.append(frame.clip(0, 255).astype(np.uint8))
            encoded = encode_h264(np.stack(frames), 15, {"crf": "18", "g": "1"})
            write_bytes(root / part / file.parent.name / f"{index:04d}.mp4", encoded)


def evaluations(folder: dict[str, Any], loader: dict[str, Any]) -> list[dict[str, Any]]:
    """Return hooks for the probe and kNN with labels, and for the measures without labels."""

    def part(data: dict[str, Any]) -> dict[str, Any]:
        return {**loader, "dataset": {**loader["dataset"], **data}}

    common = {"type": "OnlineEvaluationHook", "evaluations": 4}
    labelled = {**common, "metrics": [{"type": "LinearProbe"}, {"type": "KNN"}]}
    if "pattern" in folder:
        labelled |= {"gallery": part(folder["all"]), "group_pattern": folder["pattern"]}
    else:
        labelled |= {"gallery": part(folder["train"]), "queries": part(folder["test"])}
    free = {**common, "gallery": part(folder["test"]), "out": "label_free.jsonl"}
    return [labelled, {**free, "metrics": [{"type": name} for name in _LABEL_FREE]}]


def trained(
    method: str, folder: dict[str, Any], out: Path, steps: int, size: int, times: int
) -> list[dict]:
    """Train, and return the rows with ``step``, the probe and the measures."""
    base = load_config(methods()[method])
    samples, batch = 96, 16  # of an epoch, in whole batches
    options: dict[str, Any] = {
        **options_of_settings(base, {"size": size}),
        "train_dataloader.sampler.min_samples": samples,
        "train_dataloader.batch_size": batch,
        "train_dataloader.num_workers": 0,
        "train_dataloader.persistent_workers": False,
        "train_cfg.max_epochs": max(1, steps * batch // samples),
        "optim_wrapper.optimizer.lr": times * base.optim_wrapper.optimizer.lr,
        "custom_hooks.ScheduleHook.lr.warmup_epochs": 1,
        "default_hooks.checkpoint": None,
        "run_page": None,
        "visualizer": None,
    }
    options |= {f"train_dataloader.dataset.{k}": v for k, v in folder["train"].items()}
    if "num_prototypes" in base.model:
        options["model.num_prototypes"] = 16  # fewer than the videos of each set
    if base.model.get("momentum") is not None:
        options["custom_hooks.ScheduleHook.model.momentum.start"] = 0.9  # as pretrain chooses
    cfg = load_config(methods()[method], options)
    loader = cfg.test_dataloader.to_dict() | {"num_workers": 0}
    loader["dataset"]["on_error"] = "raise"
    cfg.custom_hooks += evaluations(folder, loader)
    cfg.test_dataloader = cfg.test_cfg = cfg.test_evaluator = None
    launch.run_training(configs.training_config(cfg, work_dir=out))
    files = (out / name for name in ("online_evaluation.jsonl", "label_free.jsonl"))
    both = zip(*([row for _, row in read_json_lines(file, [])] for file in files), strict=True)
    return [{"step": a["iter"], **{n: {**a, **b}[n] for n in (AIM, *MEASURES)}} for a, b in both]


def _ranked(a: list[float], b: list[float]) -> float:
    constant = len(set(a)) < 2 or len(set(b)) < 2
    return float("nan") if constant else float(spearmanr(a, b).statistic)


def summary(runs: list[dict[str, Any]], measure: str) -> dict[str, float]:
    """Return ``all``, ``within`` and ``gain`` of a measure, as means over sets and trainings."""
    sets: dict[str, list[list[dict]]] = {}
    for run in runs:
        sets.setdefault(run["set"], []).append(run["rows"])
    across, within, gains = [], [], []
    for trainings in sets.values():
        rows = [row for training in trainings for row in training]
        across.append(_ranked([row[measure] for row in rows], [row[AIM] for row in rows]))
        for training in trainings:
            values = [row[measure] for row in training]
            within.append(_ranked(values, [row[AIM] for row in training]))
            picked = training[int(np.argmax(values))]
            gains.append(100 * (picked[AIM] - training[-1][AIM]))
    means = {"all": np.nanmean(across), "within": np.nanmean(within), "gain": np.mean(gains)}
    return {name: float(value) for name, value in means.items()}


def correlations(runs: list[dict[str, Any]], draws: int = 2000) -> dict[str, dict[str, Any]]:
    """Return the :func:`summary` of each measure with its 95 % interval, by measure and name."""
    rng, found = np.random.default_rng(0), {}
    sets = {
        name: [run for run in runs if run["set"] == name] for name in {r["set"]: 0 for r in runs}
    }
    for measure in MEASURES:
        drawn = []
        for _ in range(draws):
            chosen = [of[i] for of in sets.values() for i in rng.integers(len(of), size=len(of))]
            drawn.append(summary(chosen, measure))
        found[measure] = {
            name: [value, *np.nanpercentile([one[name] for one in drawn], (2.5, 97.5)).tolist()]
            for name, value in summary(runs, measure).items()
        }
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path, help="folder for generated sets and training runs")
    parser.add_argument(
        "--weizmann4", help="folder with a class per sub-folder, personN in the names"
    )
    parser.add_argument(
        # Leave out the method that needs a teacher.
        "--methods",
        nargs="+",
        default=sorted({*methods()} - {"distill"}),
        choices=sorted(methods()),
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--size", type=int, default=64, help="height and width of a clip")
    parser.add_argument("--videos", type=int, nargs=2, default=(96, 72), help="train and test")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no training after these")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    counts = dict(zip(("train", "test"), args.videos, strict=True))
    generate_toy_actions(args.work / "toy_actions", counts, num_frames=40)
    if not (args.work / "digits/test").is_dir():
        moving_digits(args.work / "digits", counts)
    folders: dict[str, dict[str, Any]] = {
        name: {part: {"data_root": str(args.work / name / part)} for part in counts}
        for name in ("toy_actions", "digits")
    }
    if args.weizmann4:
        root, split = {"data_root": args.weizmann4}, {"held_out": 12, "seed": 0}
        parts = {"train": "training", "test": "held_out"}
        own = {k: {**root, "subset": {"part": part, **split}} for k, part in parts.items()}
        folders["weizmann4"] = {**own, "all": root, "pattern": r"person(\d+)"}
    usual = [(s, m, 1) for m in args.methods for s in folders]
    trainings = usual + [(s, m, HARMFUL) for m in args.methods if m in HARMED for s in folders]
    runs, begun, worked = [], time.monotonic(), time.process_time()
    for name, method, times in trainings:
        out = args.work / f"{name}_{method}_{times}"
        done = out / "rows.json"
        if not done.is_file():
            if time.monotonic() - begun > 60 * args.minutes:
                continue
            shutil.rmtree(out, ignore_errors=True)  # of a start that was interrupted
            write_json(done, trained(method, folders[name], out, args.steps, args.size, times))
        rows = json.loads(done.read_text())
        runs.append({"set": name, "method": method, "learning_rate": times, "rows": rows})
        print(f"{name} {method} x{times}: {[round(100 * r[AIM], 1) for r in rows]}", flush=True)
    report: dict[str, Any] = {"steps": args.steps, "size": args.size, "videos": counts, "aim": AIM}
    report["runs"] = runs
    report["cpu_minutes"] = (time.process_time() - worked) / 60
    parts = {"together": runs, "usual_rate": [r for r in runs if r["learning_rate"] == 1]}
    parts |= {name: [run for run in runs if run["set"] == name] for name in folders}
    report["correlations"] = {k: correlations(v, args.draws) for k, v in parts.items() if v}
    for measure, found in report["correlations"]["together"].items():
        shown = (f"{k} {v:.2f} [{a:.2f}, {b:.2f}]" for k, (v, a, b) in found.items())
        print(f"{measure:<18} {', '.join(shown)}")
    if args.json:
        write_json(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
