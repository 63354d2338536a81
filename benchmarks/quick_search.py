"""A first look at many settings: trainings on small frames in memory, half a minute each.

    python benchmarks/quick_search.py weizmann4 --out work_dirs/quick/weizmann4.jsonl \\
        --set lr=6e-3 --set momentum=0.9,lr=6e-3

Model, loss, augmentation on the batch, schedules and probes are those of the automatic run of
``sce-video pretrain``; the clips are cut from videos that were decoded once, with 48 pixels on the
short side, and views have 32 pixels. Every run sees the same number of samples. What is chosen here
is trained by ``automatic_choices.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor

from sce_video.apis.automatic.pretrain import planned_pretraining
from sce_video.datasets.video_list import scan_folder
from sce_video.engine.config import load_config
from sce_video.engine.config_settings import available_settings, parse_options
from sce_video.engine.schedules import build_schedule
from sce_video.evaluation.functional.knn import knn_scores
from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.registry import MODELS
from sce_video.utils.atomic_file import write_text
from sce_video.utils.command import command

SHORT, SIZE, FRAMES, CLIPS = 48, 32, 4, 4
_DIFFERENCES = 0.2  # of the clips are RGB differences, as in the recipes


@dataclass(frozen=True)
class Videos:
    """Decoded videos.

    Attributes:
        frames: Of every video, uint8 (T, H, W, 3).
        fps: Of every video.
        labels: (N,).
        groups: (N,), persons; -1 where a pattern is not given.
    """

    frames: list[Tensor]
    fps: list[float]
    labels: Tensor
    groups: Tensor


def read(folder: str, pattern: str | None = None) -> Videos:
    """All videos of a folder with a sub-folder for each class, reduced to 48 pixels."""
    listed = scan_folder(folder)
    frames, fps, labels, groups = [], [], [], []
    for index in range(len(listed)):
        path = listed.path(index)
        with av.open(str(Path(folder, path))) as container:
            stream = container.streams.video[0]
            scale = SHORT / min(stream.height, stream.width)
            size = round(stream.width * scale), round(stream.height * scale)
            images = [
                frame.reformat(*size, format="rgb24", interpolation="AREA").to_ndarray()
                for frame in container.decode(stream)
            ]
            fps.append(float(stream.average_rate))
        frames.append(torch.from_numpy(np.stack(images)))
        labels.append(listed.classes.index(path.split("/")[0]))
        found = re.search(pattern, path) if pattern else None
        groups.append(int(found[1]) if found else -1)
    return Videos(frames, fps, torch.tensor(labels), torch.tensor(groups))


def view(videos: Videos, index: int, seconds: float, generator: torch.Generator) -> Tensor:
    """A random clip and crop, uint8 (4, 32, 32, 3)."""
    frames, step = videos.frames[index], seconds / FRAMES * videos.fps[index]
    u = torch.rand(7, generator=generator).tolist()
    start = u[0] * max(0.0, len(frames) - FRAMES * step)
    at = [min(len(frames) - 2, int(start + (i + 0.5) * step)) for i in range(FRAMES)]
    clip = frames[at].float()
    if u[1] < _DIFFERENCES:
        change = (frames[[i + 1 for i in at]].float() - clip).mean(-1, keepdim=True) / 2 + 128
        clip = change.expand(-1, -1, -1, 3)
    height, width = clip.shape[1:3]
    area, ratio = height * width * (0.4 + 0.6 * u[2]), math.exp((2 * u[3] - 1) * math.log(4 / 3))
    h = min(height, max(8, round(math.sqrt(area / ratio))))
    w = min(width, max(8, round(math.sqrt(area * ratio))))
    top, left = int(u[4] * (height - h + 1)), int(u[5] * (width - w + 1))
    cut = clip[:, top : top + h, left : left + w].permute(0, 3, 1, 2)
    small = F.interpolate(cut, (SIZE, SIZE), mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).byte().permute(0, 2, 3, 1)


def uniform_clips(videos: Videos, seconds: float) -> Tensor:
    """Clips for the evaluation, uint8 (N, 4, 4, 32, 32, 3)."""
    rows = []
    for frames, fps in zip(videos.frames, videos.fps, strict=True):
        step = seconds / FRAMES * fps
        starts = np.linspace(0, max(0.0, len(frames) - FRAMES * step), CLIPS)
        at = [
            min(len(frames) - 1, int(s + (i + 0.5) * step)) for s in starts for i in range(FRAMES)
        ]
        small = frames[at].float().permute(0, 3, 1, 2)
        height, width = small.shape[2:]
        scale = SIZE / min(height, width)
        size = round(height * scale), round(width * scale)
        small = F.interpolate(small, size, mode="bilinear", antialias=True)
        top, left = (size[0] - SIZE) // 2, (size[1] - SIZE) // 2
        small = small[:, :, top : top + SIZE, left : left + SIZE].byte().permute(0, 2, 3, 1)
        rows.append(small.reshape(CLIPS, FRAMES, SIZE, SIZE, 3))
    return torch.stack(rows)


@torch.no_grad()
def features(model: Any, clips: Tensor) -> Tensor:
    """Mean representation of the clips of every video, (N, C)."""
    model.eval()
    rows = []
    for chunk in clips.split(16):
        data = model.data_preprocessor({"inputs": [chunk.flatten(0, 1)]}, training=False)
        rows.append(model.represent(data["inputs"][0]).reshape(len(chunk), CLIPS, -1).mean(1))
    return torch.cat(rows)


def train(cfg: Config, videos: Videos, steps: int, seed: int) -> tuple[Any, float]:
    """The trained model and the mean loss of the last tenth of the steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    spec = cfg.model.to_dict()
    spec.setdefault("data_preprocessor", cfg.data_preprocessor)
    model = MODELS.build(spec)
    optimizer_cfg = {k: v for k, v in cfg.optim_wrapper.optimizer.items() if k != "type"}
    optimizer = torch.optim.AdamW(model.parameters(), **optimizer_cfg)
    (hook,) = [hook for hook in cfg.custom_hooks if hook["type"] == "ScheduleHook"]
    rate = build_schedule(
        {"name": "warmup_cosine", "peak": optimizer_cfg["lr"], "warmup_steps": round(0.05 * steps)},
        1,
    )
    others = {name: build_schedule(s, 1) for name, s in (hook.get("model") or {}).items()}
    batch, seconds = cfg.train_dataloader.batch_size, _clip_duration(cfg)
    order: list[int] = []
    losses = []
    for step in range(steps):
        model.train()
        while len(order) < batch:
            order += torch.randperm(len(videos.frames), generator=generator).tolist()
        picked, order = order[:batch], order[batch:]
        views = [
            torch.stack([view(videos, i, seconds, generator) for i in picked]) for _ in range(2)
        ]
        optimizer.param_groups[0]["lr"] = rate(step, steps)
        for name, schedule in others.items():
            setattr(model, name, schedule(step, steps))
        outputs = model(**model.data_preprocessor({"inputs": views}, training=True), mode="loss")
        optimizer.zero_grad()
        outputs["loss"].backward()
        optimizer.step()
        model.after_optimizer_step()
        losses.append(float(outputs["loss"].detach()))
    return model, float(np.mean(losses[-max(1, steps // 10) :]))


def _clip_duration(cfg: Config) -> float:
    (step,) = [s for s in cfg.train_dataloader.dataset.pipeline if s["type"] == "RandomClips"]
    return step["clip_duration"]


def scores(known: Tensor, asked: Tensor, train_set: Videos, test_set: Videos) -> dict[str, float]:
    """kNN and linear probe, in percent; of one set leaving out one group after the other."""
    hits = {"knn": 0, "linear": 0}
    groups = test_set.groups.unique().tolist()
    for group in groups:
        mine = test_set.groups == group
        others = train_set.groups != group if len(groups) > 1 else slice(None)
        x, y = known[others], train_set.labels[others]
        k = min(20, len(x))
        votes = knn_scores(asked[mine], x, y, k=k)
        hits["knn"] += int((votes.argmax(1) == test_set.labels[mine]).sum())
        probe = fit_linear_probe(x, y).scores(asked[mine], int(y.max()) + 1)
        hits["linear"] += int((probe.argmax(1) == test_set.labels[mine]).sum())
    return {name: 100 * count / len(test_set.labels) for name, count in hits.items()}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", help="folder with a sub-folder for each class")
    parser.add_argument("--test", help="another folder; default: leave one group out")
    parser.add_argument("--group-pattern", default=r"person(\d+)")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each run")
    parser.add_argument("--method", default="sce")
    parser.add_argument("--samples", type=int, default=9600)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", action="append", default=[""], help="setting=value,...")
    return parser.parse_args(argv)


def configured(path: Path, settings: Mapping[str, Any]) -> Config:
    """The automatic run's config with settings of its recipe, or keys of its model."""
    known = available_settings(load_config(str(path)))
    options = {}
    for name, value in settings.items():
        options |= {place: value for place in known.get(name, (f"model.{name}",))}
    return load_config(str(path), options)


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    torch.set_num_threads(1)
    train_set = read(args.train, None if args.test else args.group_pattern)
    test_set = read(args.test) if args.test else train_set
    plan = planned_pretraining(args.train, args.out, method=args.method, settings={"epochs": 40})
    written = args.out.with_suffix(".py")
    write_text(written, plan.config.pretty_text)
    for text in args.set:
        settings = parse_options(text.split(",")) if text else {}
        cfg = configured(written, settings)
        steps = args.samples // cfg.train_dataloader.batch_size
        clips = [uniform_clips(videos, _clip_duration(cfg)) for videos in (train_set, test_set)]
        for seed in args.seeds:
            begin = time.process_time()
            model, loss = train(cfg, train_set, steps, seed)
            known, asked = (features(model, c) for c in clips)
            row = {
                **{"train": args.train, "set": text, "seed": seed, "steps": steps, "loss": loss},
                **scores(known, asked, train_set, test_set),
                "cpu_seconds": time.process_time() - begin,
            }
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
