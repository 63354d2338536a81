"""Batched augmentation against a loop over samples, in one run on the same views.

    python benchmarks/augmentation.py [--size 112] [--frames 8] [--batch 32] [--device cpu]
                                      [--threads 1] [--repeats 5]

The loop augments sample by sample with torch operations, as many codebases do: it applies the
drawn parameters of each sample as Python numbers, and hue by the usual HSV conversion with
`torch.where`. "chunks of 1" is the batched code on one sample at a time, which separates the gain
of the arithmetic from that of batching. All compute the same views (checked before the timing) of
strong-alpha and strong-beta at strength 1. Prints milliseconds per view of a sample (best of the
repeats, which are interleaved) and the ratio to the loop.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.models.augmentation import ViewParameters
from sce_video.models.data_preprocessors.video import VideoDataPreprocessor

VIEWS = [dict(name="strong-alpha", strength=1.0), dict(name="strong-beta", strength=1.0)]


def grey(x: Tensor) -> Tensor:
    """Luminance (1, T, H, W) of an RGB clip (3, T, H, W)."""
    return 0.2989 * x[0:1] + 0.587 * x[1:2] + 0.114 * x[2:3]


def blend(x: Tensor, other: Tensor, factor: float) -> Tensor:
    return (factor * x + (1.0 - factor) * other).clamp(0.0, 1.0)


def shift_hue(x: Tensor, shift: float) -> Tensor:
    red, green, blue = x
    value, low = x.amax(0), x.amin(0)
    chroma = value - low
    safe = torch.where(chroma == 0, torch.ones_like(chroma), chroma)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
    )
    hue = (hue / 6.0 + shift) % 1.0
    channels = []
    for n in (5.0, 3.0, 1.0):
        k = (n + hue * 6.0) % 6.0
        channels.append(value - chroma * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0))
    return torch.stack(channels)


def blur(x: Tensor, sigma: float) -> Tensor:
    taps = torch.arange(-11, 12, device=x.device, dtype=x.dtype)
    kernel = torch.exp(-0.5 * (taps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    planes = F.pad(x.flatten(0, 1)[None], (11, 11, 11, 11), mode="reflect")
    C = planes.shape[1]
    planes = F.conv2d(planes, kernel.view(1, 1, 1, -1).expand(C, 1, 1, -1), groups=C)
    planes = F.conv2d(planes, kernel.view(1, 1, -1, 1).expand(C, 1, -1, 1), groups=C)
    return planes.view_as(x)


def augment_sample(clip: Tensor, parameters: ViewParameters, i: int) -> Tensor:
    """The augmented, normalised view (3, T, H, W) of a uint8 clip (T, H, W, 3)."""
    x = clip.permute(3, 0, 1, 2).float() / 255.0
    if parameters.jitter[i]:
        b, c, s, h = parameters.factors[i].tolist()
        for part in parameters.order[i].tolist():
            if part == 0:
                x = (b * x).clamp(0.0, 1.0)
            elif part == 1:
                x = blend(x, grey(x).mean((-2, -1), keepdim=True), c)
            elif part == 2:
                x = blend(x, grey(x), s)
            else:
                x = shift_hue(x, h)
    if parameters.grey[i]:
        x = grey(x).repeat(3, 1, 1, 1)
    if parameters.blur[i]:
        x = blur(x, float(parameters.sigma[i]))
    if parameters.solarise[i]:
        x = torch.where(x >= 0.5, 1.0 - x, x)
    if parameters.flip[i]:
        x = x.flip(-1)
    return (x - 0.45) / 0.225


def make_batch(args: argparse.Namespace) -> dict:
    generator = torch.Generator().manual_seed(0)
    shape = (args.batch, args.frames, args.size, args.size, 3)
    views = [torch.randint(256, shape, dtype=torch.uint8, generator=generator) for _ in VIEWS]
    seeds = torch.randint(2**62, (args.batch,), generator=generator)
    return dict(inputs=[view.to(args.device) for view in views], seed=seeds)


def timed(work: Callable[[], list[Tensor]], device: str) -> float:
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    batch = make_batch(args)
    batched = VideoDataPreprocessor(views=VIEWS).to(args.device)
    single = VideoDataPreprocessor(views=VIEWS, chunk_size=1).to(args.device)

    @torch.no_grad()
    def loop() -> list[Tensor]:
        drawn = batched.draw(args.batch, len(VIEWS), batch["seed"])
        return [
            torch.stack([augment_sample(clip, parameters, i) for i, clip in enumerate(clips)])
            for clips, parameters in zip(batch["inputs"], drawn, strict=True)
        ]

    methods: dict[str, Callable[[], list[Tensor]]] = {
        "loop": loop,
        "chunks of 1": lambda: single(batch, training=True)["inputs"],
        "batched": lambda: batched(batch, training=True)["inputs"],
    }
    for work in methods.values():
        for view, reference in zip(work(), loop(), strict=True):
            torch.testing.assert_close(view, reference, atol=1e-4, rtol=0)
    best = dict.fromkeys(methods, float("inf"))
    for _ in range(args.repeats):
        for name, work in methods.items():
            best[name] = min(best[name], timed(work, args.device))
    shape = f"{args.batch} x {args.frames} x {args.size}^2"
    print(f"{shape} on {args.device}, {args.threads} threads, torch {torch.__version__}")
    for name, seconds in best.items():
        milliseconds = 1000 * seconds / (args.batch * len(VIEWS))
        print(
            f"  {name:12s} {milliseconds:8.3f} ms, {best['loop'] / seconds:5.2f} x the loop's speed"
        )


if __name__ == "__main__":
    main()
