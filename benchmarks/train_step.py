"""Measure the SCE training step of the recipes: eager fp32 and faster settings, in one run.

    python benchmarks/train_step.py [--network r3d18 r3d50 | --recipe CONFIG.py] [--frames 8]
        [--size 224] [--batch N] [--settings eager best ...] [--steps N] [--rounds N]
        [--device cpu|cuda] [--threads 1] [--videos DIR [--workers N]] [--peak-tflops X]
        [--json OUT] [--cfg-options KEY=VALUE ...]

--recipe measures a recipe of SCE with two views, of videos or images, with its own frames, size and
batch unless given. --videos may then be a folder of images, or of an archive (CIFAR).

A setting is ``eager`` (the recipe in fp32), ``best`` (the fastest on this device), or parts joined
by "+": ``bf16``, ``channels_last``, ``compile`` (the backbones, like the config's ``compile``),
``graphs`` (the same with CUDA graphs), ``conv_2d`` (like the config's), ``tf32`` (products of fp32
with a mantissa of 10 bits), ``no_benchmark`` (cuDNN does not try its algorithms), ``with_cp``
(activations are computed again in the backward pass), and ``keep_memory`` (CPU: glibc's malloc
keeps freed memory for the next step instead of returning it to the system, see KEEP_MEMORY). LARS
and the target update are multi-tensor in all settings. If this machine cannot run a setting, it is
left out and the reason is printed.

Every setting runs in its own process, so that its peak memory can be measured. The steps of the
settings are interleaved, one process at a time, and results are medians over the steps. A step
consists of augmentation of uint8 views, online and target forward, loss, backward, LARS, target
update and queue. The views are random bytes in memory. With --videos, they come from the recipe's
loader over that folder, and waiting for the loader is a part of the step. ``training_hours`` then
refers to all epochs of the recipe at the measured speed.

The JSON's ``ratios`` belong to the first network, and ``networks`` contains every network's ratios:
``best_over_eager``, and ``lars_and_target_share``, the largest share of LARS and the target update
in a step over the settings. On a CPU with one thread, both use CPU time, which is less sensitive to
other load, and otherwise wall time (``clock`` names which).

FLOPs count forward and backward (torch.utils.flop_counter; a multiplication and an addition count
as two). ``floor`` contains them and the least bytes of a step (see step_floor.py).
``share_of_peak`` is relative to the dense bf16 peak, also in fp32. If the peak is unknown (CPUs;
--peak-tflops sets it), it is replaced by the fastest matrix product or 3x3 convolution that was
measured in the process in the setting's dtype.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import MMLogger
from mmengine.registry import init_default_scope
from step_floor import floor_of, operations_of  # beside this file
from step_process import PARTS, RECIPES, Job, SettingProcess, with_sizes

from sce_video.utils.files import write_json

FLAGS = (
    *("bf16", "channels_last", "compile", "graphs", "conv_2d", "tf32", "no_benchmark"),
    *("keep_memory", "with_cp"),
)
# Dense bf16 TFLOP/s (V100, T4: fp16) of the vendors' data sheets; the first matching name is used.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "A100": 312.0,
    "A40": 150.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L4": 121.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
    "V100": 125.0,
    "T4": 65.0,
}


def obstacle(flag: str, device: str) -> str | None:
    """Return the reason why this machine cannot use a flag, or None."""
    bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if flag == "bf16" and device == "cpu" and not bf16:
        return "this CPU has no bf16 instructions (avx512_bf16 or amx): bf16 would be slower"
    if flag == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(False):
        return "this GPU has no bf16"
    compiler = os.environ.get("CXX", "g++")
    if flag in ("tf32", "graphs", "no_benchmark") and device == "cpu":
        return f"{flag} is a setting of GPUs"
    if flag == "compile" and device == "cpu" and not any(map(shutil.which, (compiler, "clang++"))):
        return "torch.compile needs a C++ compiler on a CPU (g++, or $CXX) and there is none"
    if flag == "keep_memory" and (device == "cuda" or platform.libc_ver()[0] != "glibc"):
        return "keep_memory is a setting of glibc's malloc, for CPUs"
    return None


def flags_of(setting: str, device: str) -> frozenset[str]:
    """Return the flags of a setting. ``best`` has those that help and are available on this device.

    Raises:
        ValueError: If a part is unknown.
    """
    if setting == "eager":
        return frozenset()
    if setting == "best":
        # On a CPU, torch.compile takes a minute and does not help (docs/performance.md).
        helps = ["bf16", "channels_last", "compile" if device == "cuda" else "keep_memory"]
        return frozenset(flag for flag in helps if obstacle(flag, device) is None)
    flags = setting.split("+")
    for flag in flags:
        if flag not in FLAGS:
            raise ValueError(
                f"unknown setting {setting!r}: eager, best, or parts of {', '.join(FLAGS)} "
                'joined by "+"'
            )
    return frozenset(flags)


def peak_tflops(name: str) -> float | None:
    """Return the dense bf16 peak in TFLOP/s of a GPU by its name, or None if it is not known."""
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def summary(process: SettingProcess, flops: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return the results of one setting, empty if it did not run."""
    memory, measured = process.ask("memory"), process.ask("measured")
    total_steps = process.ask("total_steps")
    if process.error is not None:
        return {}
    steps = process.steps
    medians = {k: statistics.median(step[k] for step in steps) for k in ("videos", "wall", "cpu")}
    seconds = medians[args.clock]
    peak = args.peak_tflops
    if peak is None and args.device == "cuda":
        peak = peak_tflops(torch.cuda.get_device_name())
    speed = flops * medians["videos"] / seconds / 1e12
    return dict(
        flags=sorted(process.flags),
        seconds=dict(
            wall=medians["wall"], cpu=medians["cpu"], steps=[step[args.clock] for step in steps]
        ),
        videos_per_s=medians["videos"] / medians["wall"],
        clips_per_s=2 * medians["videos"] / medians["wall"],
        parts=shares_of_parts(steps, args.clock),
        data_wait_share=statistics.median(step["waited"] / step["wall"] for step in steps),
        training_hours=None if total_steps is None else total_steps * medians["wall"] / 3600,
        peak_memory_bytes=memory,
        tflops=speed,
        measured_tflops=measured,
        peak_tflops=peak or measured,
        share_of_peak=speed / (peak or measured),
    )


def shares_of_parts(steps: list[dict[str, Any]], clock: str) -> dict[str, float]:
    """Return the median share of every part in a step. Waiting takes no CPU time."""
    column = ("wall", "cpu").index(clock)
    measured = [step["parts"] for step in steps if step["parts"]]
    medians = {
        part: statistics.median(parts.get(part, (0.0, 0.0))[column] for parts in measured)
        for part in PARTS
    }
    total = sum(medians.values())
    return {part: seconds / total for part, seconds in medians.items()}


def measure(recipe: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure all settings of a recipe, interleaved."""
    job = Job(
        *(recipe, args.frames, args.size, args.batch, frozenset(), args.device, args.threads),
        *(args.videos, args.workers, tuple(args.cfg_options)),
    )
    job = with_sizes(job)
    floor = floor_of(operations_of(job))
    flops = 1e12 * floor["tflop"] / job.batch
    processes: list[SettingProcess] = []
    left_out: dict[str, str] = {}
    try:
        for setting in args.settings:
            flags = flags_of(setting, args.device)
            reasons = [
                why for flag in FLAGS if flag in flags and (why := obstacle(flag, args.device))
            ]
            if reasons:
                left_out[setting] = reasons[0]
            else:
                processes.append(SettingProcess(setting, replace(job, flags=flags)))
        run_interleaved(processes, args)
        settings = {}
        for process in processes:
            values = summary(process, flops, args)
            if process.error is None:
                settings[process.name] = values
            else:
                left_out[process.name] = process.error
    finally:
        for process in processes:
            process.close()
    return dict(
        **dict(frames=job.frames, size=job.size, batch=job.batch, floor=floor),
        **dict(gflops_per_video=flops / 1e9, settings=settings, left_out=left_out),
        ratios=ratios(settings, args.clock),
    )


def run_interleaved(processes: list[SettingProcess], args: argparse.Namespace) -> None:
    for process in processes:
        process.ask("run", 1)  # warms up, compiles
    for number in range(args.rounds):
        for process in processes[:: 1 if number % 2 == 0 else -1]:
            process.steps += process.ask("run", args.steps) or []


def ratios(settings: dict[str, dict], clock: str) -> dict[str, float]:
    """Return each setting's speed-up over eager, and the share of LARS and target update."""
    speeds = {}
    if "eager" in settings:
        base = settings["eager"]["seconds"][clock]
        speeds = {
            f"{name}_over_eager": base / values["seconds"][clock]
            for name, values in settings.items()
            if name != "eager"
        }
    shares = [s["parts"]["optimiser"] + s["parts"]["target update"] for s in settings.values()]
    return {**speeds, **({"lars_and_target_share": max(shares)} if shares else {})}


def show(network: str, result: dict[str, Any]) -> None:
    print(
        f"\n{network}, batch {result['batch']}, two views of {result['frames']}x{result['size']}: "
        f"{result['gflops_per_video']:.1f} GFLOP per video and step; in 16 bits "
        f"{result['floor']['convolutions_gb']:.1f} GB in convolutions alone, "
        f"{result['floor']['eager_gb']:.1f} GB in all operations"
    )
    for name, why in result["left_out"].items():
        print(f"  {name}: left out: {why}")
    for name, values in result["settings"].items():
        seconds = values["seconds"]
        print(
            f"  {name} ({', '.join(values['flags']) or 'fp32'}): {seconds['wall']:.3f} s per step, "
            f"{seconds['cpu']:.3f} s of CPU time, {values['clips_per_s']:.1f} clips/s\n"
            f"    {values['tflops']:.3f} TFLOP/s, {100 * values['share_of_peak']:.0f} % of "
            f"{values['peak_tflops']:.3f}; peak memory {values['peak_memory_bytes'] / 2**30:.2f} "
            f"GiB; waits for data {100 * values['data_wait_share']:.1f} % of the time"
        )
        if values["training_hours"] is not None:
            print(f"    all epochs of the recipe at this speed: {values['training_hours']:.1f} h")
        shares = (f"{part} {100 * share:.1f}" for part, share in values["parts"].items())
        print(f"    parts, %: {', '.join(shares)}")
    print(f"  ratios: {', '.join(f'{k} {v:.3f}' for k, v in result['ratios'].items())}")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--network", nargs="+", choices=sorted(RECIPES), default=["r3d18"])
    what.add_argument("--recipe", metavar="CONFIG.py", help="of SCE, of videos or images")
    parser.add_argument("--frames", type=int, help="of a clip; 8, or the recipe's")
    parser.add_argument("--size", type=int, help="pixels; 224, or the recipe's")
    parser.add_argument(
        "--batch", type=int, help="videos; the recipe's; for --network on a CPU 16, else 64"
    )
    parser.add_argument("--settings", nargs="+", default=["eager", "best"])
    parser.add_argument("--steps", type=int, help="steps per round: 10 on a GPU, 1 on a CPU")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every setting")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU")
    parser.add_argument(
        "--videos", metavar="DIR", help="videos or images to load instead of random bytes"
    )
    parser.add_argument("--workers", type=int, default=1, help="loader workers for --videos")
    parser.add_argument("--peak-tflops", type=float, help="dense bf16 peak of the device")
    parser.add_argument("--json", metavar="OUT", help="JSON file for the results")
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(argv)
    for name in ("frames", "size", "batch", "steps", "rounds", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    if args.device not in ("cpu", "cuda"):
        parser.error(f"--device must be cpu or cuda, got {args.device!r}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU")
    try:
        for setting in args.settings:
            flags_of(setting, args.device)
    except ValueError as error:
        parser.error(f"--settings: {error}")
    if args.videos is not None and not Path(args.videos).is_dir():
        parser.error(f"--videos {args.videos}: no such folder")
    if args.recipe is not None and not Path(args.recipe).is_file():
        parser.error(f"--recipe {args.recipe}: no such file")
    on_gpu = args.device == "cuda"
    if args.recipe is None:
        args.frames, args.size = args.frames or 8, args.size or 224
        args.batch = args.batch or (64 if on_gpu else 16)
    args.steps = args.steps or (10 if on_gpu else 1)
    args.clock = "cpu" if not on_gpu and args.threads == 1 else "wall"
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    # Suppress one log line per weight while models are built.
    MMLogger.get_instance("train_step", log_level=logging.WARNING)
    init_default_scope("sce_video")
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine() + " CPU"
    print(f"{device}, torch {torch.__version__}, {args.threads} threads, load {os.getloadavg()}")
    recipes = {network: RECIPES[network] for network in args.network}
    if args.recipe is not None:
        recipes = {Path(args.recipe).stem: str(Path(args.recipe).resolve())}
    networks = {}
    try:
        for network, recipe in recipes.items():
            networks[network] = measure(recipe, args)
            show(network, networks[network])
    except ValueError as error:
        print(f"train_step: {error}", file=sys.stderr)
        return 2
    report = dict(
        device=device,
        torch=torch.__version__,
        threads=args.threads,
        clock=args.clock,
        load=os.getloadavg(),
        steps=args.steps * args.rounds,
        videos=args.videos is not None,
        networks=networks,
        ratios=next(iter(networks.values()))["ratios"],
    )
    if args.json:
        write_json(args.json, report)
    return 0 if all(network["settings"] for network in networks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
