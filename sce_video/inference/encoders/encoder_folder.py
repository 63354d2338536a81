"""An encoder of others as the folder of a run: a config and a checkpoint, as a training leaves.

So every command and function that takes a run or a checkpoint takes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from sce_video.engine.checkpoint import file_sha256, save_checkpoint_file
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import SNAPSHOT, plain
from sce_video.engine.recipes import find_recipe, recipes_folder
from sce_video.engine.restarts import starts_of
from sce_video.engine.weights import checked_backbone
from sce_video.inference.encoders.public_networks import public_network
from sce_video.inference.encoders.text import stored_text
from sce_video.inference.encoders.transformers_files import (
    UNBUILT,
    EncoderError,
    ProcessorSettings,
    bounded_by_files,
    brought_pool,
    find_model,
    load_parts,
    read_encoder_config,
    read_processor,
)
from sce_video.inference.network_input import TEST_CROPS, TRAIN_CROPS
from sce_video.models.backbones.hf_encoder import architecture_of, family_of
from sce_video.options.connect import DEFAULT_FRAME_POOL
from sce_video.registry import MODELS
from sce_video.utils.files import cache_folder, file_identity, write_text
from sce_video.utils.run_files import (
    CONFIG,
    MODEL_PREFIX,
    is_model,
    is_public_network,
    weights_file,
)

_CLIPS = 4  # of a video, as in sce-video embed and index


def encoder_config(backbone: dict[str, Any], settings: ProcessorSettings) -> dict[str, Any]:
    """A config for ``sce-video embed``, ``index`` and ``evaluate``."""
    pipeline = evaluation_pipeline(settings)
    videos = {"type": "VideoDataset", "data_root": "data/videos", "pipeline": pipeline}
    loader, gallery = (
        {"batch_size": 4, "num_workers": 2, "dataset": {**videos, "on_error": on_error}}
        for on_error in ("raise", "skip")
    )
    preprocessor = {"type": "VideoDataPreprocessor", "mean": settings.mean, "std": settings.std}
    runtime = load_config(recipes_folder() / "_base_/default_runtime.py").to_dict()
    for of_training in ("visualizer", "run_page"):
        del runtime[of_training]
    return {
        **runtime,
        "default_hooks": {"logger": {"type": "LoggerHook"}},
        "model": {"type": "Encoder", "backbone": backbone},
        "data_preprocessor": preprocessor,
        "test_dataloader": loader,
        "test_evaluator": [
            {"type": "KNN", "k": 20},
            {"type": "LinearProbe"},
            {"type": "Retrieval", "ks": (1, 5, 10)},
            {"type": "FeatureStatistics"},
        ],
        "test_cfg": {"type": "MultiViewTestLoop", "gallery_dataloader": gallery},
    }


def _resize(settings: ProcessorSettings) -> dict[str, Any]:
    """The transform that resizes frames as the processor does."""
    side = settings.short_side
    size = (side, side) if settings.square else side
    interpolation = settings.interpolation
    return {"type": "ResizeAsProcessor", "size": size, "interpolation": interpolation}


def evaluation_pipeline(settings: ProcessorSettings) -> list[dict[str, Any]]:
    """Steps from a file to the clips of a video, as the processor makes them."""
    if settings.clip_duration is None:
        clip: dict[str, Any] = {"type": "CenterSegmentClip", "num_frames": settings.num_frames}
    else:
        clip = {
            "type": "UniformClips",
            "clip_duration": settings.clip_duration,
            "num_frames": settings.num_frames,
            "num_clips": _CLIPS,
        }
    resize = {**_resize(settings), "crop": None if settings.square else settings.crop_size}
    pack = {"type": "PackVideo", "crop_size": settings.crop_size, "num_crops": 1}
    return [
        {"type": "OpenVideo"},
        clip,
        {"type": "DecodeSharedFrames"},
        *([{**pack, "whole": True}] if settings.in_float else [resize, pack]),
    ]


CHECKPOINT = "epoch_0.pth"  # weights before any training of this package
#: Counts up when the files of a run change.
_FORMAT = 3


@dataclass(frozen=True)
class ImportedEncoder:
    """A third-party network that was written as the folder of a run.

    Attributes:
        kind: Family of the network.
        pool: How its features become a representation.
        backbone: Config of the network.
        settings: Its input.
        parameters: Number of parameters of the backbone.
        unused: Number of weights of other parts.
        has_text: Whether it can embed texts.
        checkpoint: Path of the checkpoint.
    """

    kind: str
    pool: str
    backbone: dict[str, Any]
    settings: ProcessorSettings
    parameters: int
    unused: int
    has_text: bool
    checkpoint: str


def run_of_model(run: str | os.PathLike) -> str:
    """A run or checkpoint unchanged; of ``hf:MODEL``, the folder of a run made for it.

    The folder is in the cache (``SCE_VIDEO_CACHE``, or ``sce_video`` in the user's cache folder),
    made once for each state of the model's files (size, modification time and inode: reading all
    weights at every call would take longer than the rest), with all of its own settings.

    Raises:
        ValueError: see :func:`import_encoder`.
    """
    if not is_model(run):
        return os.fspath(run)
    if is_public_network(run):
        return _run_of_public_network(os.fspath(run))
    name = os.fspath(run).removeprefix(MODEL_PREFIX)
    folder = find_model(name)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    states = [(path.name, file_identity(path)) for path in files]
    text = json.dumps([_FORMAT, str(folder.resolve()), states])
    short = Path(os.path.abspath(name)).name if os.path.isdir(name) else name.replace("/", "--")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    out = cache_folder() / "encoders" / digest / short
    # A run without it was interrupted.
    if not (out / CONFIG).is_file():  # written last
        import_encoder(name, out, folder=folder)
    return str(out)


def _run_of_public_network(name: str) -> str:
    """Return the folder of a run of a public image network, made once for its weights."""
    file = weights_file(name)
    digest = hashlib.sha256(json.dumps([_FORMAT, file_sha256(file)]).encode()).hexdigest()[:16]
    out = cache_folder() / "encoders" / digest / name
    if not (out / CONFIG).is_file():
        import_public_network(name, out)
    return str(out)


def import_public_network(
    name: str,
    out: str | os.PathLike,
    *,
    pool: str | None = None,
    frames: int | None = None,
    fps: float | None = None,
) -> ImportedEncoder:
    """Write the folder of a run with a public image network and its published weights.

    Args:
        name: One of :data:`~sce_video.utils.run_files.PUBLIC_NETWORKS`.
        out: Folder of the run.
        pool: How the features of frames become a representation; None for the mean and the mean
            absolute difference.
        frames: Frames of a clip; None for 4.
        fps: Frames per second of a clip; None for 8.

    Raises:
        MissingPackageError: If the package with the weights is not installed.
        ValueError: If a setting is out of range, or ``out`` contains a training.
    """
    if starts_of(Path(out)):
        raise ValueError(f"{out} is the folder of a training. Give another folder")
    backbone, settings, weights = public_network(name, pool or DEFAULT_FRAME_POOL)
    network = MODELS.build(backbone)
    network.load_state_dict(weights)
    meta = {"encoder": {"name": name, "pool": backbone["frame_pool"]}}
    settings = settings.with_clip(frames, fps)
    state = {f"backbone.{key}": value for key, value in network.state_dict().items()}
    return ImportedEncoder(
        kind=name,
        pool=backbone["frame_pool"],
        backbone=backbone,
        settings=settings,
        parameters=sum(value.numel() for value in network.parameters()),
        unused=0,
        has_text=False,
        checkpoint=_write_run(Path(out), encoder_config(backbone, settings), state, meta),
    )


def _write_run(
    out: Path, config: dict[str, Any], weights: dict[str, Any], meta: dict[str, Any]
) -> str:
    """Write a config and a checkpoint of a network, and return the path of the checkpoint."""
    cfg = Config(config)
    out.mkdir(parents=True, exist_ok=True)
    meta = {SNAPSHOT: json.dumps(plain(cfg)), **meta}
    save_checkpoint_file({"meta": meta, "state_dict": weights}, out / CHECKPOINT)
    write_text(out / CONFIG, cfg.pretty_text)
    return str(out / CHECKPOINT)


def import_encoder(
    name: str,
    out: str | os.PathLike,
    *,
    pool: str | None = None,
    frames: int | None = None,
    fps: float | None = None,
    folder: Path | None = None,
) -> ImportedEncoder:
    """Write the folder of a run with an encoder of transformers: a config and a checkpoint.

    Args:
        name: Folder of a model, as ``save_pretrained`` writes it, or its name on the hub.
        out: Folder of the run.
        pool: How features become a representation; None for the model's own: that of a classifier
            where it is one (attentive, mean_norm), the class token or the projection where it has
            one, else the mean of the patch tokens.
        frames: Frames of a clip; None for the model's own.
        fps: Frames per second; None for the model's own.
        folder: Where the files are, if they have been found already.

    Raises:
        EncoderError: the model cannot be found or read, is of no known family, of another task, or
            asks for code of its own.
        ValueError: it has no such pooling, or cannot take such clips; ``out`` holds a training.
        MissingPackageError: transformers is not installed.
    """
    if starts_of(Path(out)):  # its config would be replaced, and its newest checkpoint, too
        raise ValueError(f"{out} is the folder of a training: give another folder")
    folder = find_model(name.removeprefix(MODEL_PREFIX)) if folder is None else folder
    config = read_encoder_config(folder)
    family = family_of(config.model_type)
    brought = brought_pool(folder, config)
    pool = brought or family.pools[0] if pool is None else pool
    of_classifiers = family.classifier.pool if family.classifier else None
    known = [p for p in family.pools if p == brought or p != of_classifiers]
    if pool not in known:
        raise ValueError(f"pool of {name} must be one of {', '.join(known)}, got {pool!r}")
    settings = read_processor(folder, config).with_clip(frames, fps)
    architecture = architecture_of(config)
    backbone: dict[str, Any] = {"type": "HFEncoder", "architecture": architecture, "pool": pool}
    try:
        with bounded_by_files(folder):
            encoder = MODELS.build(checked_backbone(backbone))
    except UNBUILT as error:  # a name of no activation, negative sizes
        raise EncoderError(f"{name}: its network cannot be built: {error}") from error
    clip = {"frames": settings.num_frames, "size": settings.crop_size}
    if refused := encoder.refused(clip["frames"], clip["size"], clip["size"]):
        advice = ": leave --frames out" if frames is not None and refused.what == "frames" else ""
        raise ValueError(f"{name} takes {refused.takes}, got {clip[refused.what]}{advice}")
    parts, unused = load_parts(folder, config, pool)
    if settings.in_float:
        backbone["resize_to"] = settings.crop_size
    weights = {}
    for part, module in parts.items():
        prefix = "text_encoder" if part in family.text else "backbone"
        for key, value in module.state_dict().items():
            weights[f"{prefix}.{part}.{key}"] = value.contiguous()
    text = stored_text(folder, config) if "text_model" in parts else None
    meta: dict[str, Any] = {"encoder": {"name": name, "pool": pool}}
    if text is not None:
        meta["text"] = text
    of_backbone = [parts[key] for key in ("network", "pooler")]
    return ImportedEncoder(
        kind=architecture["model_type"],
        pool=pool,
        backbone=backbone,
        settings=settings,
        parameters=sum(p.numel() for part in of_backbone for p in part.parameters()),
        unused=unused,
        has_text=text is not None,
        checkpoint=_write_run(Path(out), encoder_config(backbone, settings), weights, meta),
    )


#: Entries that say what a recipe reproduces, and names of settings of the replaced network.
_DROPPED = ("benchmark", "split", "settings")


def write_recipe(
    recipe: str | os.PathLike,
    out: str | os.PathLike,
    encoder: dict[str, Any],
    settings: ProcessorSettings,
    checkpoint: str,
) -> Path:
    """Write a recipe NAME as ``out/NAME.py`` with an encoder, its weights, normalisation and clips.

    Optimiser, schedule, augmentation and heads stay those of the recipe, a file or name of a
    config that trains. A finetuning takes the weights as ``pretrained``, any other recipe as the
    initialisation of its backbone. EncoderError: the recipe trains nothing, or has views that the
    encoder cannot take.
    """
    cfg = load_config(str(recipe))
    model = cfg.get("model") or {}
    if cfg.get("train_cfg") is None or not isinstance(model.get("backbone"), dict):
        raise EncoderError(f"{recipe} trains no backbone: give a pretraining or a finetuning")
    backbone = {k: v for k, v in encoder.items() if k != "resize_to"}
    with torch.device("meta"):  # no memory for weights
        built = MODELS.build(backbone)
    frozen = model["backbone"].get("frozen_stages", -1)
    checkpoint = os.path.abspath(checkpoint)
    if "pretrained" in cfg:
        cfg.pretrained = checkpoint
    else:
        init = {"type": "Pretrained", "checkpoint": checkpoint, "prefix": "backbone."}
        backbone["init_cfg"] = init
    cfg.model.backbone = {**backbone, "frozen_stages": frozen}
    if isinstance(model.get("cls_head"), dict):
        cfg.model.cls_head.in_channels = built.out_channels
    for holder in (cfg, cfg.model):
        if isinstance(holder.get("data_preprocessor"), dict):
            holder.data_preprocessor.update(mean=settings.mean, std=settings.std)
            holder.data_preprocessor.pop("channels_last", None)
    for holder, key in _pipelines(cfg._cfg_dict):
        holder[key] = [_step(step, settings, built, str(recipe)) for step in holder[key]]
    for name in _DROPPED:
        cfg.pop(name, None)
    path = Path(out, f"{find_recipe(str(recipe)).stem}.py")
    write_text(path, cfg.pretty_text)
    return path


def _pipelines(node: Any) -> Iterator[tuple[dict, str]]:
    """Where the pipelines of a config are."""
    for key, value in list(node.items()):
        if key.endswith("pipeline") and isinstance(value, list | tuple):
            yield node, key
        elif isinstance(value, dict):
            yield from _pipelines(value)


def _step(step: dict, settings: ProcessorSettings, encoder: Any, recipe: str) -> dict:
    """A step of a pipeline with the frames and sizes of the encoder."""
    step = dict(step)
    kind = str(step.get("type")).rpartition(".")[2]
    if step.get("num_local_views") and encoder.takes_one_size:
        raise EncoderError(
            f"{recipe} has local views, which are smaller, and the encoder takes views of "
            f"{settings.crop_size}x{settings.crop_size} pixels only: take a recipe without them"
        )
    if "num_frames" in step:
        step["num_frames"] = settings.num_frames
        if "clip_duration" in step and settings.clip_duration is not None:
            step["clip_duration"] = settings.clip_duration
    if kind == "ResizeShortSide" and isinstance(step.get("size"), int):
        return _resize(settings)
    if kind == "ResizeShortSide":  # a range of a training, before a random crop
        low, high = step["size"]
        factor = max(1.0, settings.crop_size / low)
        step["size"] = (round(low * factor), round(high * factor))
    if kind in TEST_CROPS:
        step[TEST_CROPS[kind]] = settings.crop_size
    if kind in TRAIN_CROPS:
        step["size"] = settings.crop_size
    return step
