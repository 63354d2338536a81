"""A third-party encoder as a run folder, with a config and a checkpoint as training writes them.

Every command and function that accepts a run therefore accepts the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor

from sce_video.engine.checkpoint import (
    file_sha256,
    load_checkpoint_file,
    newest_checkpoint,
    save_checkpoint_file,
)
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import SNAPSHOT, plain
from sce_video.engine.recipes import find_recipe, recipes_folder
from sce_video.engine.restarts import starts_of
from sce_video.engine.weights import checked_backbone, checkpoint_weights
from sce_video.inference.encoders.frame_networks import (
    NUM_FRAMES,
    SECONDS_APART,
    ImageNetwork,
    frame_pools_of,
    public_network,
)
from sce_video.inference.encoders.text import has_text, stored_text
from sce_video.inference.encoders.timm_files import RESNETS, timm_config, timm_network
from sce_video.inference.encoders.torchvision_files import is_published, torchvision_network
from sce_video.inference.encoders.transformers_files import (
    TIMM_OWNER,
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
from sce_video.inference.stored_test import stored_test
from sce_video.models.backbones.hf_encoder import architecture_of, family_of
from sce_video.models.backbones.timm_package import timm
from sce_video.options.connect import DEFAULT_FRAME_POOL, FRAME_POOLS
from sce_video.registry import MODELS
from sce_video.utils.files import cache_folder, file_identity, write_text
from sce_video.utils.records import at
from sce_video.utils.run_files import (
    CONFIG,
    MODEL_PREFIX,
    check_pool,
    is_model,
    is_public_network,
    model_folder,
    split_pool,
    weights_file,
)
from sce_video.utils.storage import is_url

_CLIPS = 4  # clips per video, as in sce-video embed and index


def encoder_config(
    backbone: Mapping[str, object], settings: ProcessorSettings
) -> dict[str, object]:
    """Return a config for ``sce-video embed``, ``index`` and ``evaluate``."""
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


def _resize(settings: ProcessorSettings) -> dict[str, object]:
    """Return the transform that resizes frames as the processor does."""
    side = settings.short_side
    size = (side, side) if settings.square else side
    interpolation = settings.interpolation
    return {"type": "ResizeAsProcessor", "size": size, "interpolation": interpolation}


def evaluation_pipeline(settings: ProcessorSettings) -> list[dict[str, object]]:
    """Return the steps from a file to the clips of a video, as the processor makes them."""
    clip: dict[str, object] = {"type": "CenterSegmentClip", "num_frames": settings.num_frames}
    if settings.clip_duration is not None:
        sampling = {"clip_duration": settings.clip_duration, "num_clips": _CLIPS}
        clip |= {"type": "UniformClips", **sampling}
    resize = {**_resize(settings), "crop": None if settings.square else settings.crop_size}
    pack = {"type": "PackVideo", "crop_size": settings.crop_size, "num_crops": 1}
    return [
        {"type": "OpenVideo"},
        clip,
        {"type": "DecodeSharedFrames"},
        *([{**pack, "whole": True}] if settings.in_float else [resize, pack]),
    ]


CHECKPOINT = "epoch_0.pth"  # the weights before any training in this package
#: Version of the run's file format. Increase it when the files change.
_FORMAT = 3


@dataclass(frozen=True)
class ImportedEncoder:
    """A third-party network that was written as the folder of a run.

    Attributes:
        kind: Family of the network.
        pool: How its features become a representation.
        backbone: Config of the network.
        settings: Input settings of the network.
        parameters: Number of parameters of the backbone.
        unused: Number of weights of other parts.
        has_text: Whether it can embed text.
        checkpoint: Path of the checkpoint.
    """

    kind: str
    pool: str
    backbone: Mapping[str, object]
    settings: ProcessorSettings
    parameters: int
    unused: int
    has_text: bool
    checkpoint: str


def run_of_model(run: str | os.PathLike) -> str:
    """Return a run or checkpoint unchanged, and for a third-party model the folder of its run.

    The folder is in the cache (``SCE_VIDEO_CACHE``, or ``sce_video`` in the user's cache folder).
    It is made once for each pool and each state of the model's files. The state consists of size,
    modification time and inode, because reading all weights in every call would be slow.

    Args:
        run: A run or checkpoint; ``hf:MODEL``, or the folder of a transformers or timm model; or
            the name of a public network. A model may be followed by its pool, ``NAME:POOL``.

    Raises:
        ValueError: If there is no such pool, or :func:`import_encoder` raises it.
    """
    given, pool = split_pool(run)
    if pool is not None:
        check_pool(given, pool)
        if os.path.exists(given) and model_folder(given) is None:
            checkpoint = newest_checkpoint(given)
            imported = run_of_weights(checkpoint, pool=pool)
            if imported is None:
                imported = _run_with_pool(checkpoint, pool)
            return str(Path(imported).parent)
    name = given.removeprefix(MODEL_PREFIX)
    if is_public_network(given):
        return _imported_once(name, [file_sha256(weights_file(name))], name, pool)
    if is_model(given):
        folder = _find_folder(name)
    elif (local := model_folder(given)) is not None:
        folder, name = local, str(local)
    else:
        return os.fspath(run)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    states = [(path.name, file_identity(path)) for path in files]
    short = Path(os.path.abspath(name)).name if os.path.isdir(name) else name.replace("/", "--")
    return _imported_once(name, [str(folder.resolve()), states], short, pool, folder)


def _find_folder(name: str) -> Path:
    """Return the folder of a model, which is fetched if ``name`` is one on the hub.

    Raises:
        EncoderError: If there is no such model.
        MissingPackageError: If its package is missing, before anything is fetched.
    """
    if name.startswith(TIMM_OWNER) and not os.path.isdir(name):
        architecture = name.removeprefix(TIMM_OWNER).partition(".")[0]
        if architecture not in RESNETS:
            timm()
    return find_model(name)


def run_of_weights(
    checkpoint: str | os.PathLike,
    content: Mapping[str, Any] | None = None,
    pool: str | None = None,
) -> str | None:
    """Return the run checkpoint of a torchvision state dict; None for any other file.

    The run is made once for the content of the file, in the cache, see :func:`run_of_model`.

    Args:
        checkpoint: A file, or a URL, which is never a torchvision state dict.
        content: Content of the file, if it has been read.
        pool: How the features of frames become a representation; None for the default.

    Raises:
        ValueError: If the file is damaged.
    """
    name = os.fspath(checkpoint)
    if is_url(name) or not os.path.isfile(name):
        return None
    content = load_checkpoint_file(name) if content is None else content
    if not is_published(checkpoint_weights(dict(content))):
        return None
    run = _imported_once(name, [file_sha256(name)], Path(name).stem, pool)
    return str(Path(run, CHECKPOINT))


def _run_with_pool(checkpoint: str, pool: str) -> str:
    """Return the checkpoint of a copy of an own run whose network uses another pool.

    The copy contains the backbone, the text encoder if texts can be compared with its features, and
    the run's test. Its config is read as data, as in
    :func:`~sce_video.inference.stored_test.stored_test`.

    Raises:
        ValueError: If the network cannot pool the features of single frames, it does not have this
            pool, or the checkpoint contains no config.
    """
    short = f"{Path(checkpoint).parent.name}_{Path(checkpoint).stem}"
    out = _cached_folder([file_sha256(checkpoint)], short, pool)
    if not (out / CONFIG).is_file():
        cfg = stored_test(checkpoint)
        backbone = cfg.model.backbone.to_dict()
        pools = frame_pools_of(backbone)
        if not pools:
            raise ValueError(
                f"{checkpoint}:{pool}: a {backbone['type']} does not keep the features of single "
                f"frames, so its pool cannot be changed. Give {checkpoint} alone"
            )
        if (model_type := at(backbone, "architecture.model_type")) is not None:
            own = next(name for name, frame_pool in pools.items() if frame_pool == "mean")
            known = family_of(model_type).pools
            names = token_and_frame_pool(checkpoint, pool, own, known, per_frame=True)
            backbone["pool"], backbone["frame_pool"] = names
        elif pool in pools:
            backbone["frame_pool"] = pool
        else:
            raise ValueError(f"{checkpoint}:{pool}: the pool must be one of {', '.join(pools)}")
        preprocessor = cfg.model.data_preprocessor.to_dict()
        cfg.model = {"type": "Encoder", "backbone": backbone, "data_preprocessor": preprocessor}
        content = load_checkpoint_file(checkpoint)
        kept = ("backbone.", "text_encoder.") if has_text(backbone) else ("backbone.",)
        state = checkpoint_weights(content)
        weights = {key: value for key, value in state.items() if key.startswith(kept)}
        meta = {"encoder": {"name": checkpoint, "pool": pool}, "classifier": False}
        if has_text(backbone) and (text := at(content, "meta.text", dict)) is not None:
            meta["text"] = text
        _write_run(out, cfg.to_dict(), weights, meta)
    return str(out / CHECKPOINT)


def token_and_frame_pool(
    name: str, pool: str | None, usual: str, known: Sequence[str], per_frame: bool
) -> tuple[str, str]:
    """Return the arguments ``pool`` and ``frame_pool`` of an ``HFEncoder`` for ``NAME:POOL``.

    Names with a plus and ``concat`` pool the frames, whose tokens the usual pool has combined. All
    other names pool tokens, and the frames are averaged.

    Args:
        name: Name of the model or run, for the message.
        pool: Given pool; None for the usual one.
        usual: Pool of the tokens if ``pool`` does not name one.
        known: Pools of the tokens that the model supports.
        per_frame: Whether the model encodes each frame separately.

    Raises:
        ValueError: If the model does not support the pool.
    """
    if pool is None or pool in known:
        return pool or usual, "mean"
    of_frames = [frame_pool for frame_pool in FRAME_POOLS if frame_pool != "mean" and per_frame]
    if pool not in of_frames:
        accepted = ", ".join((*known, *of_frames))
        raise ValueError(f"pool of {name} must be one of {accepted}, got {pool!r}")
    return usual, pool


def _cached_folder(facts: list[Any], short: str, pool: str | None) -> Path:
    """Return the folder of the run in the cache that belongs to these facts about a model.

    Its config is written last, so a run without it was interrupted.
    """
    if pool is not None:
        facts, short = [*facts, pool], f"{short}_{pool}"
    digest = hashlib.sha256(json.dumps([_FORMAT, *facts]).encode()).hexdigest()[:16]
    return cache_folder() / "encoders" / digest / short


def _imported_once(
    name: str, facts: list[Any], short: str, pool: str | None, folder: Path | None = None
) -> str:
    """Return the cached run of a model, which is written if these facts have changed."""
    out = _cached_folder(facts, short, pool)
    if not (out / CONFIG).is_file():
        import_encoder(name, out, pool=pool, folder=folder)
    return str(out)


def find_image_network(name: str, folder: Path | None) -> ImageNetwork | None:
    """Return a third-party image network whose frames are pooled here; None for any other model.

    Args:
        name: Name of a public network, a file, or a name that :func:`find_model` accepts.
        folder: Folder with the files of the model, if there is one.

    Raises:
        MissingPackageError: If the package of the network is not installed.
        ValueError: If the network is unknown or its weights do not fit.
    """
    if is_public_network(name):
        return public_network(name)
    if folder is None:
        weights = checkpoint_weights(load_checkpoint_file(name))
        if (found := torchvision_network(weights, name)) is None:
            raise EncoderError(
                f"{name} does not contain a supported torchvision network. Give the folder of a "
                "model, or a network that docs/encoders.md lists"
            )
        return found
    stored = timm_config(folder)
    return None if stored is None else timm_network(folder, stored)


def _write_image_network(
    network: ImageNetwork, out: Path, source: str, pool: str, settings: ProcessorSettings
) -> ImportedEncoder:
    """Write the folder of a run with an image network and its pool."""
    backbone = {**network.backbone, "frame_pool": pool}
    model = MODELS.build(checked_backbone(backbone))
    model.load_state_dict(network.weights)
    meta = {"encoder": {"name": source, "pool": pool}, "classifier": network.is_classifier}
    state = {f"backbone.{key}": value for key, value in network.weights.items()}
    return ImportedEncoder(
        kind=network.name,
        pool=pool,
        backbone=backbone,
        settings=settings,
        parameters=sum(value.numel() for value in model.parameters()),
        unused=len(network.unused),
        has_text=False,
        checkpoint=_write_run(out, encoder_config(backbone, settings), state, meta),
    )


def _write_run(
    out: Path, config: dict[str, object], weights: dict[str, Tensor], meta: Mapping[str, object]
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
    """Write the folder of a run with a third-party encoder: a config and a checkpoint.

    Args:
        name: Folder or hub name of a transformers or timm model; a file with torchvision weights;
            or the name of a public image network.
        out: Folder of the run.
        pool: How features become a representation. None uses the model's own pooling: a
            classifier's (attentive, mean_norm), the class token, the projection, or else the mean
            of the patch tokens. For an image encoder of transformers, it can also be a pool of
            frame features, such as mean+absdiff. For an image network (timm, torchvision or
            public), it is always the pool of frame features, and None uses all motion parts.
        frames: Number of frames per clip; None uses the model's number, or 4 for an image network
            or a pool with motion.
        fps: Frames per second; None uses the model's rate, or 8 for an image network or a pool with
            motion.
        folder: Folder with the files, if it is already known.

    Raises:
        EncoderError: If the model cannot be found or read, its family is unknown, it was made for
            another task, or it requires custom code.
        ValueError: If the model has no such pool or does not accept such clips, or ``out`` contains
            a run.
        MissingPackageError: If transformers, timm or the package with the weights is needed and not
            installed.
    """
    if starts_of(Path(out)):  # keep the run's config and newest checkpoint
        raise ValueError(f"{out} is the folder of a training run. Give another folder")
    name = name.removeprefix(MODEL_PREFIX)
    if folder is None and not (is_public_network(name) or os.path.isfile(name)):
        folder = _find_folder(name)
    image_network = find_image_network(name, folder)
    if image_network is not None:
        pool, settings = pool or DEFAULT_FRAME_POOL, image_network.settings.with_clip(frames, fps)
        return _write_image_network(image_network, Path(out), name, pool, settings)
    assert folder is not None  # transformers models always have a folder
    return _import_transformers(folder, Path(out), name, pool, frames, fps)


def _import_transformers(
    folder: Path, out: Path, name: str, pool: str | None, frames: int | None, fps: float | None
) -> ImportedEncoder:
    """Write the folder of a run with a transformers model, as :func:`import_encoder` does."""
    config = read_encoder_config(folder)
    family = family_of(config.model_type)
    brought = brought_pool(folder, config)
    usual = brought or family.pools[0]
    of_classifiers = family.classifier.pool if family.classifier else None
    known = [p for p in family.pools if p == brought or p != of_classifiers]
    of_tokens, of_frames = token_and_frame_pool(name, pool, usual, known, family.per_frame)
    architecture = architecture_of(config)
    backbone: dict = {"type": "HFEncoder", "architecture": architecture, "pool": of_tokens}
    if of_frames != "mean":
        backbone["frame_pool"] = of_frames
        # A processor of images states one frame, which contains no motion.
        frames = NUM_FRAMES if frames is None else frames
        fps = 1 / SECONDS_APART if fps is None else fps
    settings = read_processor(folder, config).with_clip(frames, fps)
    try:
        with bounded_by_files(folder):
            encoder = MODELS.build(checked_backbone(backbone))
    except UNBUILT as error:  # e.g. unknown activation names or negative sizes
        raise EncoderError(f"{name}: its network cannot be built: {error}") from error
    clip = {"frames": settings.num_frames, "size": settings.crop_size}
    if refused := encoder.refused(clip["frames"], clip["size"], clip["size"]):
        advice = ". Remove --frames" if frames is not None and refused.what == "frames" else ""
        raise ValueError(f"{name} accepts {refused.takes}, got {clip[refused.what]}{advice}")
    parts, unused = load_parts(folder, config, of_tokens)
    if of_frames != "mean":  # the features cannot be compared with texts
        parts = {part: module for part, module in parts.items() if part not in family.text}
    if settings.in_float:
        backbone["resize_to"] = settings.crop_size
    weights = {}
    for part, module in parts.items():
        prefix = "text_encoder" if part in family.text else "backbone"
        for key, value in module.state_dict().items():
            weights[f"{prefix}.{part}.{key}"] = value.contiguous()
    text = stored_text(folder, config) if "text_model" in parts else None
    pool = of_tokens if of_frames == "mean" else of_frames
    meta = {"encoder": {"name": name, "pool": pool}, **({} if text is None else {"text": text})}
    of_backbone = [parts[key] for key in ("network", "pooler")]
    return ImportedEncoder(
        kind=architecture["model_type"],
        pool=pool,
        backbone=backbone,
        settings=settings,
        parameters=sum(p.numel() for part in of_backbone for p in part.parameters()),
        unused=unused,
        has_text=text is not None and has_text(backbone),
        checkpoint=_write_run(out, encoder_config(backbone, settings), weights, meta),
    )


#: Entries to drop. They state what a recipe reproduces, or name settings of the replaced network.
_DROPPED = ("benchmark", "split", "settings")


def write_recipe(
    recipe: str | os.PathLike,
    out: str | os.PathLike,
    encoder: Mapping[str, object],
    settings: ProcessorSettings,
    checkpoint: str,
) -> Path:
    """Write a recipe NAME as ``out/NAME.py`` with an encoder, its weights, normalisation and clips.

    The recipe is the file or name of a training config, whose optimiser, schedule, augmentation and
    heads stay the same. A finetuning recipe gets the weights as ``pretrained``, any other recipe as
    the initialisation of its backbone. EncoderError is raised if the recipe does not train a
    backbone, or its views do not suit the encoder.
    """
    cfg = load_config(str(recipe))
    replaced = at(cfg, "model.backbone", dict)
    if at(cfg, "train_cfg") is None or replaced is None:
        raise EncoderError(
            f"{recipe} does not train a backbone. Choose a pretraining or finetuning recipe"
        )
    backbone = {k: v for k, v in encoder.items() if k != "resize_to"}
    with torch.device("meta"):  # allocate no memory for weights
        built = MODELS.build(backbone)
    frozen = replaced.get("frozen_stages", -1)
    checkpoint = os.path.abspath(checkpoint)
    if "pretrained" in cfg:
        cfg.pretrained = checkpoint
    else:
        init = {"type": "Pretrained", "checkpoint": checkpoint, "prefix": "backbone."}
        backbone["init_cfg"] = init
    cfg.model.backbone = {**backbone, "frozen_stages": frozen}
    if at(cfg, "model.cls_head", dict) is not None:
        cfg.model.cls_head.in_channels = built.out_channels
    for holder in (cfg, cfg.model):
        if at(holder, "data_preprocessor", dict) is not None:
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
    """Return where the pipelines of a config are."""
    for key, value in list(node.items()):
        if key.endswith("pipeline") and isinstance(value, list | tuple):
            yield node, key
        elif isinstance(value, dict):
            yield from _pipelines(value)


def _step(step: dict, settings: ProcessorSettings, encoder: Any, recipe: str) -> dict:
    """Return a step of a pipeline with the frames and sizes of the encoder."""
    step = dict(step)
    kind = str(at(step, "type")).rpartition(".")[2]
    if at(step, "num_local_views") and getattr(encoder, "takes_one_size", False):
        side = settings.crop_size
        raise EncoderError(
            f"{recipe} uses smaller local views, but the encoder accepts only views of {side}x"
            f"{side} pixels. Choose a recipe without local views"
        )
    if "num_frames" in step:
        step["num_frames"] = settings.num_frames
        if "clip_duration" in step and settings.clip_duration is not None:
            step["clip_duration"] = settings.clip_duration
    if kind == "ResizeShortSide" and at(step, "size", int) is not None:
        return _resize(settings)
    if kind == "ResizeShortSide":  # training resizes to a random size in this range, then crops
        low, high = step["size"]
        factor = max(1.0, settings.crop_size / low)
        step["size"] = (round(low * factor), round(high * factor))
    if kind in TEST_CROPS:
        step[TEST_CROPS[kind]] = settings.crop_size
    if kind in TRAIN_CROPS:
        step["size"] = settings.crop_size
    return step
