"""Multi-tensor LARS against a loop over parameters, on the parameters of a network.

    python benchmarks/lars.py [--depth 50] [--device cpu|cuda] [--steps 20] [--rounds 7]

Both run interleaved in one process, on equal parameters and gradients. Prints the median time of a
step of each, their ratio, and the largest difference between parameters afterwards.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from sce_video.engine.optimizers import LARS
from sce_video.models.backbones import ResNet3dSlowPath

SETTINGS = {"lr": 4.8, "momentum": 0.9, "weight_decay": 1e-6, "trust_coefficient": 0.001}


class LoopLARS:
    """The same update, one parameter after the other."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.buffers = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self) -> None:
        for param, buffer in zip(self.params, self.buffers, strict=True):
            update = param.grad
            assert update is not None
            if param.ndim > 1:
                update = update.add(param, alpha=SETTINGS["weight_decay"])
                param_norm, norm = param.norm(), update.norm()
                ratio = SETTINGS["trust_coefficient"] * param_norm / norm
                usable = (param_norm > 0) & (norm > 0)
                update = update.mul(torch.where(usable, ratio, torch.ones_like(ratio)))
            buffer.mul_(SETTINGS["momentum"]).add_(update)
            param.sub_(buffer, alpha=SETTINGS["lr"])


def time_steps(optimizer: LARS | LoopLARS, steps: int, device: str) -> float:
    """Seconds per step."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def copies(values: list[Tensor], grads: list[Tensor]) -> list[nn.Parameter]:
    params = [nn.Parameter(value.clone()) for value in values]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description="LARS: multi-tensor against a loop.")
    parser.add_argument("--depth", type=int, default=50, help="18, 34, 50 or 101")
    parser.add_argument("--base-channels", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=5, help="steps per round")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()

    torch.manual_seed(0)
    network = ResNet3dSlowPath(depth=args.depth, base_channels=args.base_channels).to(args.device)
    values = [param.detach() for param in network.parameters()]
    grads = [1e-3 * torch.randn_like(value) for value in values]
    foreach, loop = copies(values, grads), copies(values, grads)
    optimizers = {"all at once": LARS(foreach, **SETTINGS), "loop": LoopLARS(loop)}
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    for optimizer in optimizers.values():
        time_steps(optimizer, 2, args.device)
    for _ in range(args.rounds):
        for name, optimizer in optimizers.items():
            times[name].append(time_steps(optimizer, args.steps, args.device))
    medians = {name: statistics.median(values) for name, values in times.items()}
    difference = max((a - b).abs().max().item() for a, b in zip(foreach, loop, strict=True))

    count = sum(value.numel() for value in values)
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"ResNet3D-{args.depth}: {len(values)} tensors, {count:,} values, {where}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, seconds in medians.items():
        spread = f"{min(times[name]) * 1e3:.2f} to {max(times[name]) * 1e3:.2f}"
        print(f"{name:12s} {seconds * 1e3:8.2f} ms per step (median of {args.rounds}; {spread})")
    print(f"loop / all at once: {medians['loop'] / medians['all at once']:.2f}")
    print(f"largest difference between parameters: {difference:.1e}")


if __name__ == "__main__":
    main()
