"""Time of a training step of attentive probes beside that of a linear probe on the same network.

    python benchmarks/attentive_probe.py [--depth 50] [--frames 8] [--size 224] [--batch 4]
        [--classes 400] [--mlp-ratio 0] [--rounds 5] [--device cpu|cuda] [--threads 1]

Measured, each with forward, loss, backward and optimiser step: the frozen backbone alone (forward);
a linear layer on the mean of its features; one attentive probe; a grid of 20 in one pass; and the
same grid with every token projected to keys and values by each probe, as attention is usually
computed. The parts are interleaved in one process, and ratios are medians of the rounds.
Decoding is not included. An epoch of a protocol costs backbone + head for each video.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.backbones import ResNet3dSlowPath
from sce_video.models.heads import AttentiveProbeHead
from sce_video.models.heads.attentive_probe import AttentiveProbe
from sce_video.models.modules import average_pool

Step = Callable[[], None]
LRS, DECAYS = (5e-3, 3e-3, 1e-3, 3e-4, 1e-4), (0.01, 0.1, 0.4, 0.8)


class ProjectedHead(AttentiveProbeHead):
    """The same probes with keys and values of every token."""

    def _logits(self, tokens: Tensor, probes: list[AttentiveProbe]) -> list[Tensor]:
        return [self._projected(tokens, probe) for probe in probes]

    def _projected(self, tokens: Tensor, probe: AttentiveProbe) -> Tensor:
        tokens = F.layer_norm(
            tokens, probe.norm.normalized_shape, probe.norm.weight, probe.norm.bias, 1e-6
        )
        query = probe.to_query(probe.query).expand(len(tokens), 1, -1)
        q, k, v = (
            x.unflatten(2, (probe.num_heads, -1)).transpose(1, 2)
            for x in (query, probe.to_key(tokens), probe.to_value(tokens))
        )
        x = probe.query + F.scaled_dot_product_attention(q, k, v).flatten(1)
        return probe.fc_cls(x if probe.mlp is None else x + probe.mlp(x))


def training_step(module: nn.Module, logits: Callable[[], Tensor], labels: Tensor) -> Step:
    """One optimiser step of a classifier with logits (N, K), or of G with (N, G, K)."""
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)

    def step() -> None:
        scores = logits()
        scores = scores.unsqueeze(1) if scores.ndim == 2 else scores
        losses = [F.cross_entropy(one, labels) for one in scores.unbind(1)]
        torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def build_steps(args: argparse.Namespace) -> dict[str, Step]:
    """The measured parts by name."""
    torch.manual_seed(0)
    backbone = ResNet3dSlowPath(args.depth, channels_last=False, frozen_stages=4).to(args.device)
    view = torch.rand(args.batch, 3, args.frames, args.size, args.size, device=args.device)
    labels = torch.randint(args.classes, (args.batch,), device=args.device)
    features = backbone(view)
    channels = backbone.out_channels
    linear = nn.Linear(channels, args.classes)
    one, grid, projected = (
        kind(args.classes, channels, lrs, decays, mlp_ratio=args.mlp_ratio)
        for kind, lrs, decays in (
            (AttentiveProbeHead, LRS[:1], DECAYS[:1]),
            (AttentiveProbeHead, LRS, DECAYS),
            (ProjectedHead, LRS, DECAYS),
        )
    )
    for head in (linear, one, grid, projected):
        head.to(args.device)
    projected.load_state_dict(grid.state_dict())
    with torch.no_grad():  # the same function
        torch.testing.assert_close(grid(features), projected(features), rtol=1e-3, atol=1e-3)

    @torch.no_grad()
    def forward() -> None:
        backbone(view)

    return {
        "backbone": forward,
        "linear": training_step(linear, lambda: linear(average_pool(features)), labels),
        "one": training_step(one, lambda: one(features), labels),
        "grid": training_step(grid, lambda: grid(features), labels),
        "projected": training_step(projected, lambda: projected(features), labels),
    }


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Median seconds of every part, interleaved."""
    steps = build_steps(args)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(args.rounds + 1):  # the first warms up
        for name, step in steps.items():
            start = now(args.device)
            step()
            if number:
                seconds[name].append(now(args.device) - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def now(device: str) -> float:
    """CPU time of this process, or wall time of a GPU."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("depth", 50), ("frames", 8), ("size", 224), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("classes", 400), ("rounds", 5), ("threads", 1), ("mlp-ratio", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    found = measure(args)
    epoch = {name: found["backbone"] + found[name] for name in found if name != "backbone"}
    print("| part | s per step | step with the backbone / that of the linear probe |")
    print("|---|---|---|")
    print(f"| backbone, forward | {found['backbone']:.3f} | |")
    for name, total in epoch.items():
        print(f"| {name} | {found[name]:.3f} | {total / epoch['linear']:.3f} |")
    print(f"10,000 videos of kept features: {1e4 / args.batch * found['grid']:.0f} s for the grid")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
