"""Exported networks of full width beside PyTorch: difference on 100 clips, and clips per second.

    python benchmarks/exported_networks.py [--networks r18 r50 r50_per_frame vit] [--clips 100]
                                           [--frames 4] [--size 96] [--json FILE]

ResNet3D-18 and -50, ResNet-50 per frame and the small ViT, with random weights and BN statistics.
The same clips go through PyTorch, onnxruntime and the exported program, at batches of 1 and 7, one
batch through each in turn. The difference is relative to nothing: features are of the order of 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from sce_video.apis.exporting.network_files import export_network
from sce_video.apis.exporting.network_module import ClipNetwork
from sce_video.apis.model import build_model
from sce_video.apis.model_settings import ModelSettings
from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.registry import MODELS

NETWORKS = {
    "r18": dict(type="ResNet3dSlowPath", depth=18, zero_init_residual=False),
    "r50": dict(type="ResNet3dSlowPath", depth=50, zero_init_residual=False),
    "r50_per_frame": dict(type="ResNet2d", depth=50),
    "vit": dict(type="VisionTransformer3d", depth=12, embed_dims=384, num_heads=6),
}
BATCHES = (1, 7)


def model_of(backbone: dict, frames: int, size: int, folder: Path):
    """A network with random weights, whose BN statistics are those of random clips."""
    torch.manual_seed(0)
    network = MODELS.build(backbone).train()
    with torch.no_grad():
        for _ in range(20):  # until the running statistics follow the weights
            network(torch.randn(2, 3, 2, 64, 64))
    weights = {f"backbone.{name}": value for name, value in network.state_dict().items()}
    save_checkpoint_file({"state_dict": weights}, folder / "network.pth")
    settings = ModelSettings(backbone, 0.45, 0.225, 1.0, frames, size, size)
    return build_model(settings, folder / "network.pth", "cpu")


def measure(name: str, args: argparse.Namespace, folder: Path) -> dict:
    """Differences and rates of one network."""
    import onnxruntime

    model = model_of(NETWORKS[name], args.frames, args.size, folder)
    start = time.perf_counter()
    onnx = export_network(model, "onnx", folder / "model.onnx").path
    onnx_seconds = time.perf_counter() - start
    start = time.perf_counter()
    program = export_network(model, "program", folder / "model.pt2").path
    program_seconds = time.perf_counter() - start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
    stored, module = torch.export.load(program).module(), ClipNetwork(model)
    runs = {
        "pytorch": lambda clips: module(torch.from_numpy(clips))[0].numpy(),
        "onnx": lambda clips: session.run(None, {"clips": clips})[0],
        "program": lambda clips: stored(torch.from_numpy(clips))[0].numpy(),
    }
    shape = (args.clips, args.frames, args.size, args.size, 3)
    clips = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    result: dict = {"export_seconds": {"onnx": onnx_seconds, "program": program_seconds}}
    with torch.inference_mode():
        for batch in BATCHES:
            found: dict[str, list] = {kind: [] for kind in runs}
            seconds = dict.fromkeys(runs, 0.0)
            for i in range(0, args.clips, batch):
                for kind, run in runs.items():
                    before = time.perf_counter()
                    found[kind].append(run(clips[i : i + batch]))
                    seconds[kind] += time.perf_counter() - before
            rows = {kind: np.concatenate(parts) for kind, parts in found.items()}
            result[f"batch {batch}"] = {
                "largest_feature": float(np.abs(rows["pytorch"]).max()),
                "difference": {
                    kind: float(np.abs(rows[kind] - rows["pytorch"]).max())
                    for kind in ("onnx", "program")
                },
                "clips_per_second": {kind: args.clips / s for kind, s in seconds.items()},
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {
        "frames": args.frames,
        "size": args.size,
        "clips": args.clips,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "networks": {},
    }
    for name in args.networks:
        with tempfile.TemporaryDirectory() as folder:
            results["networks"][name] = measure(name, args, Path(folder))
        print(name, json.dumps(results["networks"][name], indent=2), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
