"""Evaluation on the device: the 30-view test, exact neighbours, RoIAlign."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpu_parts.part import Part
from sce_video.evaluation.functional.neighbours import knn_scores, nearest_neighbours
from sce_video.inference.multi_view import rows_of_views
from sce_video.models.modules import roi_align
from sce_video.models.modules.roi_align import _import_torchvision
from sce_video.registry import MODELS

VIEWS = (1, 10, 30)
STRIDE, CHANNELS = 16, 2048  # last maps of an R50


def person_boxes(clips: int, boxes: int, height: int, width: int) -> torch.Tensor:
    """Return upright boxes (R, 5) of 30 to 95 % of the height, some across the border."""
    rows = []
    for clip in range(clips):
        tall = torch.empty(boxes).uniform_(0.3, 0.95) * height
        wide = tall * torch.empty(boxes).uniform_(0.3, 0.8)
        x = torch.rand(boxes) * width - wide / 2
        y = torch.rand(boxes) * (height - tall / 2)
        rows.append(torch.stack([torch.full((boxes,), float(clip)), x, y, x + wide, y + tall], 1))
    return torch.cat(rows)


def timed(part: Part, function: Callable[[], Any], rounds: int) -> float:
    """Return the median of seconds, after one call to warm up."""
    seconds = []
    for _ in range(rounds + 1):
        part.synchronize()
        start = time.perf_counter()
        function()
        part.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def peak_gib(part: Part) -> float | None:
    """Return the largest allocated memory since the last reset, or None on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**30 if part.on_gpu else None


def thirty_views(part: Part) -> dict[str, Any]:
    """Measure videos per second and memory of an R50's 30-view test, by views per forward pass."""
    size, frames = (32, 4) if part.smoke else (256, 8)
    backbone = dict(
        type="ResNet3dSlowPath",
        depth=18 if part.smoke else 50,
        base_channels=8 if part.smoke else 64,
        channels_last=True,
    )
    mlp = dict(type="MLP", hidden_channels=16, out_channels=8, num_layers=2, norm_output=False)
    model = MODELS.build(
        dict(
            type="SimCLR",
            backbone=backbone,
            projector=mlp,
            data_preprocessor=dict(type="VideoDataPreprocessor", channels_last=True),
        )
    )
    model.to(part.device).eval()
    generator = torch.Generator().manual_seed(0)
    shape = (80, size, size * 4 // 3, 3)
    video = dict(
        frames=torch.randint(256, shape, dtype=torch.uint8, generator=generator),
        positions=torch.arange(10 * frames).reshape(10, frames),
        offsets=torch.tensor([[0, 0], [0, size // 6], [0, size // 3]]),
        crop_size=(size, size),
    )
    if part.on_gpu:
        video["frames"] = video["frames"].pin_memory()
    found, rows = {}, []
    for number in VIEWS:
        if part.on_gpu:
            torch.cuda.reset_peak_memory_stats()

        def run(number: int = number) -> torch.Tensor:
            kind = "cuda" if part.on_gpu else "cpu"
            with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=part.on_gpu):
                return rows_of_views(model, dict(videos=[video]), model.represent, number)[0]

        rows.append(run())
        seconds = timed(part, run, 1 if part.smoke else 5)
        found[f"max_views {number}"] = dict(
            videos_per_s=1 / seconds, views_per_s=30 / seconds, memory_gib=peak_gib(part)
        )
    difference = max(float((row - rows[0]).abs().max() / rows[0].abs().max()) for row in rows)
    return {**found, "largest_difference": difference, "passed": difference < 0.05}


def neighbours(part: Part) -> dict[str, Any]:
    """Find ten neighbours of 1,024 queries among a million features of 512, and classify by kNN."""
    count, size, queries = (10_000, 64, 64) if part.smoke else (1_000_000, 512, 1024)
    generator = torch.Generator(part.device).manual_seed(0)
    gallery = torch.randn(count, size, device=part.device, generator=generator)
    asked = torch.randn(queries, size, device=part.device, generator=generator)
    labels = torch.arange(count, device=part.device) % 400
    rounds = 1 if part.smoke else 3
    exact = asked[:8].double() @ torch.nn.functional.normalize(gallery, dim=1).double().T
    _, indices = nearest_neighbours(asked, gallery, 10)
    agree = (exact.topk(10).indices == indices[:8]).double().mean()
    found = dict(
        rows=count,
        size=size,
        queries=queries,
        neighbours_s=timed(part, lambda: nearest_neighbours(asked, gallery, 10), rounds),
        knn_s=timed(
            part, lambda: knn_scores(asked, gallery, labels, num_classes=400, k=20), rounds
        ),
        large_blocks_s=timed(
            part, lambda: nearest_neighbours(asked, gallery, 10, gallery_block=131072), rounds
        ),
        memory_gib=peak_gib(part),
        agreement=float(agree),
    )
    return {**found, "passed": found["agreement"] > 0.98}


def boxes(part: Part) -> dict[str, Any]:
    """Measure RoIAlign of an AVA step, ours and compiled ones, in milliseconds."""
    clips, side = (2, 7) if part.smoke else (16, 14)
    channels = 32 if part.smoke else CHANNELS
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(clips, channels, side, side, generator=generator).to(part.device)
    features.requires_grad_()
    rois = person_boxes(clips, 3, side * STRIDE, side * STRIDE).to(part.device)
    found: dict[str, Any] = {}
    pooled = {}
    for name in ("torch", "torchvision"):
        if name != "torch" and _import_torchvision()[0] is None:
            found[name] = "not importable"
            continue

        def run(name: str = name) -> torch.Tensor:
            features.grad = None
            out = roi_align(features, rois, 7, 1 / STRIDE, backend=name)
            out.square().mean().backward()
            return out.detach()

        try:
            pooled[name] = run()
            found[f"{name}_ms"] = 1e3 * timed(part, run, 3)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            found[name] = str(error).splitlines()[0]
    differences = [float((p - pooled["torch"]).abs().max()) for p in pooled.values()]
    return {**found, "largest_difference": max(differences), "passed": max(differences) < 1e-3}


def main(argv: Sequence[str] | None = None) -> int:
    part = Part("evaluation", argv)
    part.run("30 views", lambda: thirty_views(part))
    part.run("neighbours", lambda: neighbours(part))
    part.run("RoIAlign", lambda: boxes(part))
    return 0 if all(value.get("passed", True) for value in part.found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
