"""Run the commands of a page of the documentation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers.run_tool import free_port, load

from sce_video.commands.main import main as front_door
from sce_video.engine.config.load import load_config

#: Programs of the pages. Each prints its words, NUL-separated, instead of running.
PROGRAMS = "python bash pip source torchrun ffmpeg mkdir tar unzip rm sce-video"
PROGRAMS += " tensorboard embedding-atlas"
PARTS = ("train", "val", "test")
#: Sizes of the small sets, whose images are tested as they are.
NATIVE = (32, 64, 96)
_PRINTER = "() { printf '%s\\0' \"$FUNCNAME\" \"$@\"; printf '\\n'; }"


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code blocks of a language, with their indentation."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def words_of_commands(block: str) -> list[list[str]]:
    """The words of every command of a block, after bash has expanded loops and variables.

    Raises:
        AssertionError: bash refuses the block, or a program is not known here.
    """
    script = "".join(f"{name}{_PRINTER}\n" for name in PROGRAMS.split())
    done = subprocess.run(
        [str(shutil.which("bash")), "-uc", script + block],
        env={"PATH": "/nowhere"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"{block}{done.stderr}"
    return [line.split("\0")[:-1] for line in done.stdout.splitlines()]


def small_options(config: Path, epochs: int = 1, classes: int | None = None) -> list[str]:
    """``--cfg-options`` that make any recipe small; ``classes`` of a classifier if they change."""
    cfg = load_config(config)
    options: dict[str, object] = {"visualizer": None, "run_page": None}
    options["model.backbone.base_channels"] = 4
    if cfg.model.type == "Recognizer3D":
        options["model.cls_head.in_channels"] = 128 if cfg.model.backbone.depth == 50 else 32
        if classes is not None:
            options["model.cls_head.num_classes"] = classes
    elif cfg.model.type != "Encoder":
        heads = [name for name in ("projector", "predictor") if name in cfg.model]
        options |= {f"model.{name}.hidden_channels": 16 for name in heads}
        options |= {"model.projector.out_channels": 8, "model.queue_size": 16}
        if "online_evaluation" in cfg.default_hooks:
            options["default_hooks.online_evaluation"] = None
        if cfg.model.get("shuffle_bn_splits") is not None:
            options["model.shuffle_bn_splits"] = 2
    loaders = {f"{part}_dataloader": cfg.get(f"{part}_dataloader") for part in PARTS}
    loaders["test_cfg.gallery_dataloader"] = cfg.test_cfg.get("gallery_dataloader")
    for name, loader in loaders.items():
        if loader is not None:
            options |= _small_loader(name, loader.dataset)
    if cfg.get("train_cfg") is not None:
        options |= {"train_dataloader.batch_size": 4, "train_cfg.max_epochs": epochs}
        options |= {"train_dataloader.persistent_workers": False}
        if "min_samples" in cfg.train_dataloader.sampler:
            options["train_dataloader.sampler.min_samples"] = 0
    return [f"{key}={str(value).replace(' ', '')}" for key, value in options.items()]


def _small_loader(name: str, dataset: Any) -> dict[str, object]:
    """Two frames of half a second; crops of 224 become 32, short sides of 256 become 36."""
    options: dict[str, object] = {f"{name}.num_workers": 0}
    if dataset.type == "ImageArrayDataset":
        options[f"{name}.dataset.check_counts"] = False
    for step in dataset.pipeline:
        for key, value in step.items():
            if key in ("size", "local_size", "crop_size") and step.get("size") not in NATIVE:
                value = _shrunk(value)
            elif key in ("num_frames", "clip_duration"):
                value = 2 if key == "num_frames" else 0.5
            else:
                continue
            options[f"{name}.dataset.pipeline.{step.type}.{key}"] = value
    return options


def _shrunk(size: Any) -> Any:
    return [_shrunk(one) for one in size] if isinstance(size, list | tuple) else size // 7


def run_in_process(words: list[str], folder: Path, launched: set[str]) -> None:
    """Run a command: a launcher once as it is, then the tool that it starts, in this process.

    Args:
        words: ``sce-video ...``, ``python tools/TOOL.py ...`` or ``bash tools/LAUNCHER.sh CONFIG 1
            ...``.
        folder: The current directory; has ``tools``.
        launched: Launchers that have run; changed here.

    Raises:
        AssertionError: the command fails; what it printed is the test's output.
    """
    if words[0] == "bash" and words[1] not in launched:
        launched.add(words[1])
        done = _launch(words, folder)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return
    if words[0] == "sce-video":
        assert front_door(words[1:]) == 0, " ".join(words)
        return
    tool, arguments = _without_launcher(words)
    assert load(tool).main(arguments) == 0, " ".join(words)


def _without_launcher(words: list[str]) -> tuple[str, list[str]]:
    """The tool, without ``.py``, and its arguments."""
    tool = words[1].removeprefix("tools/")
    if words[0] == "python":
        return tool.removesuffix(".py"), words[2:]
    arguments = words[2:]
    arguments.remove("1")
    return tool.removeprefix("dist_").removesuffix(".sh"), arguments


def _launch(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PORT": str(free_port())}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
