"""``sce-video prepare``: how the lists of each dataset are made."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from sce_video.options.data_commands import (
    TRANSFER_NAMES,
    DigitsOptions,
    PrepareOptions,
    ToyActionsOptions,
)


@dataclass(frozen=True)
class PrepareResult:
    """Result of a preparation.

    Attributes:
        agrees: Whether all counts agree with the published ones; None without counts.
        text: What was written, for the terminal; empty if the counts were printed.
    """

    agrees: bool | None
    text: str = ""


def prepare(options: PrepareOptions) -> PrepareResult:
    """Check the files of a dataset, print their counts, and write its lists.

    Raises:
        FileNotFoundError: If an official file is missing; the message shows the layout.
        ValueError: If an official file is malformed, or existing lists differ.
    """
    module, write = _module(options.name), _WRITERS.get(options.name, _clips)
    return write(module, options)


def _module(name: str) -> ModuleType:
    """Return the module that reads the official files of a dataset."""
    module = "transfer_sets" if name in TRANSFER_NAMES else _MODULES.get(name, "action_sets")
    return importlib.import_module(f"sce_video.data_tools.prepare.{module}")


def layout(name: str) -> str:
    """Return the layout of the unpacked official downloads of a dataset."""
    module = _module(name)
    if name in TRANSFER_NAMES:
        return module.TRANSFER_SETS[name].layout
    return module.AVA.layout if name == "ava" else module.SETS[name][0].layout


def _path(folder: str | None) -> Path | None:
    return None if folder is None else Path(folder)


def _settings(options: PrepareOptions) -> dict[str, Any]:
    """Return the arguments of :class:`~sce_video.data_tools.prepare.lists.ListPreparation`."""
    names = ("workers", "time_limit", "ray", "keep_missing", "force")
    folders = {"root": Path(options.root), "out": _path(options.out)}
    values = {name: getattr(options, name) for name in names}
    return {**folders, **values, "check": not options.no_check}


def _write_lists(official: Any, located: Any, options: PrepareOptions) -> PrepareResult:
    """Write the lists of a dataset whose files were located."""
    from sce_video.data_tools.prepare.lists import ListPreparation, write_lists

    return PrepareResult(write_lists(official, located, ListPreparation(**_settings(options))))


def _clips(module: ModuleType, options: PrepareOptions) -> PrepareResult:
    """Prepare a dataset whose lists name its videos, or clips cut from them."""
    from sce_video.data_tools.prepare.official import class_balanced

    root, videos = Path(options.root), _path(options.videos)
    annotations = _path(options.annotations)
    if options.name == "ntu60":  # its file names are its lists
        official, located = module.read_ntu60(root, videos)
        return _write_lists(official, located, options)
    downloads, read, *clips_of = module.SETS[options.name]
    official = read(root, annotations)
    if options.segments:
        folder = videos or root / downloads.uncut
        table = Path(options.out or root) / "segments.csv"
        clips = clips_of[0](root, official, annotations)
        return PrepareResult(None, module.write_segments(table, root, folder, clips))
    if options.samples is not None:  # a smaller list, as SEVERE draws it
        name = {"ucf101": "train_split1.txt", "finegym": "train.txt"}[options.name]
        large = next(split for split in official.splits if split.list_name == name)
        small = class_balanced(large, options.samples)
        official = replace(official, splits=(*official.splits, small))
    return _write_lists(official, downloads.locate(root, official, videos), options)


def _kinetics(module: ModuleType, options: PrepareOptions) -> PrepareResult:
    """Prepare Kinetics-400, and the lists of the 200 classes if they are wanted."""
    root = Path(options.root)
    parts = ("train", "val", "test") if options.test else ("train", "val")
    official = module.read_kinetics400(root, _path(options.annotations), parts)
    if options.k200 or options.k200_classes is not None:
        names, ids = module.K200_CLASSES, None
        if options.k200_classes is not None:
            known = official.class_maps[0].names
            names = module.read_class_list(Path(options.k200_classes), known)
        if options.k200_ids:
            ids = dict(zip(("train", "val"), map(Path, options.k200_ids), strict=True))
        official = module.add_k200(official, names, ids)
    located = module.locate_kinetics(root, official, _path(options.videos))
    return _write_lists(official, located, options)


def _images(module: ModuleType, options: PrepareOptions) -> PrepareResult:
    """Prepare a dataset of images."""
    from sce_video.data_tools.prepare.official import locate_images

    root = Path(options.root)
    if options.name in TRANSFER_NAMES:
        settings = module.ListPreparation(**_settings(options))
        return PrepareResult(module.prepare_transfer_set(options.name, settings))
    if options.name == "imagenet":
        official, folder = module.read_imagenet(root, options.imagenet100), root
    else:
        official, folder = module.read_tiny_imagenet(root), module.tiny_imagenet_folder(root)
    return _write_lists(official, locate_images(root, folder, official), options)


def _ava(module: ModuleType, options: PrepareOptions) -> PrepareResult:
    """Prepare AVA, whose lists name key frames with boxes and actions."""
    settings = module.AvaPreparation(
        **_settings(options),
        annotations=_path(options.annotations),
        videos=_path(options.videos),
        frames=_path(options.frames),
        detections=tuple(map(Path, options.detections)),
        without_detections=options.no_detections,
        min_score=options.min_score,
        skip_frameless=options.skip_frameless,
        unannotated=options.unannotated,
    )
    return PrepareResult(module.prepare_ava(settings))


#: Modules below ``data_tools.prepare`` that read the official files; ``action_sets`` for all others.
_MODULES = {
    "kinetics": "kinetics",
    "finegym": "cut_clips",
    "epic_kitchens": "cut_clips",
    "tiny_imagenet": "imagenet",
    "imagenet": "imagenet",
    "ava": "ava_lists",
}
_Writer = Callable[[ModuleType, PrepareOptions], PrepareResult]
#: How the lists are written; :func:`_clips` for all others.
_WRITERS: dict[str, _Writer] = {
    "kinetics": _kinetics,
    "tiny_imagenet": _images,
    "imagenet": _images,
    "ava": _ava,
    **dict.fromkeys(TRANSFER_NAMES, _images),
}


def prepare_toy_actions(options: ToyActionsOptions) -> PrepareResult:
    """Generate labelled videos of simple actions.

    Raises:
        ValueError: If the folder contains videos that were made with other parameters.
    """
    from sce_video.data_tools.generated import CLASSES, generate_toy_actions, write_pattern_lists

    parts = {"train": options.train, "val": options.val, "test": options.test}
    root, start = Path(options.root), time.monotonic()
    generate_toy_actions(
        root,
        {part: count for part, count in parts.items() if count},
        options.seed,
        size=options.size,
        num_frames=options.num_frames,
        fps=options.fps,
        workers=options.workers,
        overwrite=options.overwrite,
    )
    if options.patterns:
        write_pattern_lists(root)
    count, seconds = sum(parts.values()), time.monotonic() - start
    return PrepareResult(
        None, f"{root}: {count} videos of {len(CLASSES)} classes ({seconds:.0f} s)"
    )


def prepare_digits(options: DigitsOptions) -> PrepareResult:
    """Write scikit-learn's handwritten digits as image files.

    Raises:
        MissingPackageError: If scikit-learn is not installed.
    """
    from sce_video.data_tools.generated import write_digits

    counts = write_digits(Path(options.root))
    listed = ", ".join(f"{part} {count}" for part, count in counts.items())
    text = f"{options.root}: {sum(counts.values()):,} images of 10 classes ({listed})"
    return PrepareResult(None, text)
