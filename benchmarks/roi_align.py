"""Our RoIAlign against a loop over the boxes, and its share of an AVA step of the R50.

    python benchmarks/roi_align.py [--clips 2] [--boxes 3] [--frames 8] [--short-side 224]
                                   [--long-side 224] [--rounds 15] [--device cpu|cuda]
                                   [--out roi_align.json]

Both pool the same boxes of the same maps (C = 2048, stride 16) to 7 x 7, forward and backward,
interleaved in one process; so do mmcv.ops and torchvision if they can be imported. Prints wall and
CPU time of each (median of the rounds), the ratio to ours, and the largest difference of values and
of gradients (relative to the largest value). Then the R50 (last stage stride 1, dilation 2) on the
same number of clips, forward alone and with the backward pass, and the share of RoIAlign in it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sce_video.models.backbones import ResNet3dSlowPath
from sce_video.models.modules import roi_align

SIZE, STRIDE, CHANNELS = 7, 16, 2048


def points(start: Tensor, end: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sampling points on one axis of a box: lower cell, upper cell, upper weight, inside or not."""
    bin_size = (end - start) / SIZE
    grid = int(torch.ceil(bin_size))
    at = start + (torch.arange(SIZE * grid, device=start.device) + 0.5) * bin_size / grid
    inside = (at >= -1) & (at <= cells)
    at = at.clamp(0, cells - 1)
    low = at.long()
    return low, (low + 1).clamp(max=cells - 1), at - low, inside


def loop_roi_align(features: Tensor, rois: Tensor) -> Tensor:
    """RoIAlign without a compiled kernel: a loop over boxes that gathers the sampling points."""
    pooled = []
    images = features.unbind(0)
    for roi in rois:
        image = images[int(roi[0])]
        x1, y1, x2, y2 = roi[1:] / STRIDE - 0.5
        y0, y9, dy, y_in = points(y1, y2, image.shape[1])
        x0, x9, dx, x_in = points(x1, x2, image.shape[2])
        dy, dx = dy[:, None], dx[None, :]
        values = (
            image[:, y0][:, :, x0] * (1 - dy) * (1 - dx)
            + image[:, y0][:, :, x9] * (1 - dy) * dx
            + image[:, y9][:, :, x0] * dy * (1 - dx)
            + image[:, y9][:, :, x9] * dy * dx
        ) * (y_in[:, None] & x_in[None, :])
        bins = values.unflatten(2, (SIZE, -1)).unflatten(1, (SIZE, -1))
        pooled.append(bins.mean(dim=(2, 4)))
    return torch.stack(pooled)


def person_boxes(clips: int, boxes: int, height: int, width: int) -> Tensor:
    """Upright boxes (R, 5) of 30 to 95 % of the height, some across the border."""
    rows = []
    for clip in range(clips):
        tall = torch.empty(boxes).uniform_(0.3, 0.95) * height
        wide = tall * torch.empty(boxes).uniform_(0.3, 0.8)
        x = torch.rand(boxes) * width - wide / 2
        y = torch.rand(boxes) * (height - tall / 2)
        rows.append(torch.stack([torch.full((boxes,), float(clip)), x, y, x + wide, y + tall], 1))
    return torch.cat(rows)


def timed(run: Callable[[], None], device: str) -> tuple[float, float]:
    """Seconds of wall and of CPU time."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter(), time.process_time()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def interleaved(
    runs: dict[str, Callable[[], None]], rounds: int, device: str
) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds of each, after one warm-up round."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            measured = timed(run, device)
            if number:
                times[name].append(measured)
    return {
        name: {
            "wall_seconds": statistics.median(t[0] for t in measured),
            "cpu_seconds": statistics.median(t[1] for t in measured),
        }
        for name, measured in times.items()
    }


def compiled_backends() -> list[str]:
    found = []
    for name in ("mmcv", "torchvision"):
        try:
            roi_align(torch.zeros(1, 1, 2, 2), torch.zeros(1, 5), 1, 1.0, backend=name)
        except ValueError as error:
            print(f"{name}: left out, {error}")
        else:
            found.append(name)
    return found


def compare(args: argparse.Namespace, maps: Tensor, rois: Tensor) -> dict[str, dict[str, float]]:
    """All versions on ``maps`` (N, C, H, W), forward and backward."""
    grad = torch.randn(len(rois), CHANNELS, SIZE, SIZE, device=args.device)
    versions: dict[str, Callable[[Tensor], Tensor]] = {
        "ours": lambda f: roi_align(f, rois, SIZE, 1 / STRIDE, backend="torch"),
        "loop": lambda f: loop_roi_align(f, rois),
    }
    for name in compiled_backends():
        versions[name] = lambda f, name=name: roi_align(f, rois, SIZE, 1 / STRIDE, backend=name)
    outputs: dict[str, tuple[Tensor, Tensor]] = {}

    def runner(name: str) -> Callable[[], None]:
        def run() -> None:
            features = maps.clone().requires_grad_()
            pooled = versions[name](features)
            pooled.backward(grad)
            outputs[name] = pooled.detach(), features.grad

        return run

    result = interleaved({name: runner(name) for name in versions}, args.rounds, args.device)
    for name, row in result.items():
        row["wall_ratio_to_ours"] = row["wall_seconds"] / result["ours"]["wall_seconds"]
        row["cpu_ratio_to_ours"] = row["cpu_seconds"] / result["ours"]["cpu_seconds"]
        for what, ours, theirs in zip(
            ("value", "gradient"), outputs["ours"], outputs[name], strict=True
        ):
            row[f"difference_of_{what}"] = float((ours - theirs).abs().max() / ours.abs().max())
    return result


def share(args: argparse.Namespace, maps: Tensor, rois: Tensor) -> dict[str, dict[str, float]]:
    """Time of backbone and RoIAlign, interleaved, forward alone and with the backward pass."""
    backbone = ResNet3dSlowPath(depth=50, last_stage_stride=1, last_stage_dilation=2)
    backbone = backbone.to(args.device).train()
    height, width = (side * STRIDE for side in maps.shape[2:])
    clips = torch.randn(args.clips, 3, args.frames, height, width, device=args.device)

    def pool(features: Tensor) -> Tensor:
        return roi_align(features, rois, SIZE, 1 / STRIDE, backend="torch")

    @torch.no_grad()
    def backbone_forward() -> None:
        out = backbone(clips)
        assert out.mean(2).shape == maps.shape, out.shape

    @torch.no_grad()
    def pool_forward() -> None:
        pool(maps)

    def backbone_step() -> None:
        backbone(clips).mean().backward()

    def pool_step() -> None:
        pool(maps.clone().requires_grad_()).mean().backward()

    result = interleaved(
        {
            "backbone forward": backbone_forward,
            "RoIAlign forward": pool_forward,
            "backbone forward and backward": backbone_step,
            "RoIAlign forward and backward": pool_step,
        },
        args.share_rounds,
        args.device,
    )
    for passes in ("forward", "forward and backward"):
        for kind in ("wall", "cpu"):
            whole = result[f"backbone {passes}"][f"{kind}_seconds"]
            row = result[f"RoIAlign {passes}"]
            row[f"{kind}_share_of_backbone"] = row[f"{kind}_seconds"] / whole
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="RoIAlign against a loop and the backbone.")
    parser.add_argument("--clips", type=int, default=2, help="clips per batch")
    parser.add_argument("--boxes", type=int, default=3, help="boxes per clip")
    parser.add_argument("--frames", type=int, default=8, help="frames per clip")
    parser.add_argument("--short-side", type=int, default=224, help="pixels; training: 224 x 224")
    parser.add_argument("--long-side", type=int, default=224, help="pixels")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--share-rounds", type=int, default=3, help="0: without the backbone")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    height, width = args.short_side // STRIDE, args.long_side // STRIDE
    maps = torch.randn(args.clips, CHANNELS, height, width, device=args.device)
    rois = person_boxes(args.clips, args.boxes, args.short_side, args.long_side).to(args.device)
    result = {"versions": compare(args, maps, rois)}
    if args.share_rounds:
        result["share"] = share(args, maps, rois)
    print(
        f"{len(rois)} boxes on maps of {tuple(maps.shape)}, {args.device}, torch "
        f"{torch.__version__}, {args.threads} threads, load {os.getloadavg()[0]:.1f}"
    )
    for rows in result.values():
        for name, row in rows.items():
            print(f"{name:32s}", ", ".join(f"{key} {value:.3g}" for key, value in row.items()))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
