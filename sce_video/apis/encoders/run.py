"""An encoder of others as the folder of a run: a config and a checkpoint, as a training leaves.

So every command and function that takes a run or a checkpoint takes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from sce_video.apis.encoders.config import encoder_config
from sce_video.apis.encoders.processor import ProcessorSettings, read_processor
from sce_video.apis.encoders.source import (
    EncoderError,
    brought_pool,
    find_model,
    load_parts,
    read_config,
    weights_of,
)
from sce_video.apis.encoders.text import stored_text
from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.engine.work_dir import CONFIG
from sce_video.models.backbones.hf_families import architecture_of, family_of
from sce_video.registry import MODELS
from sce_video.utils.atomic_file import write_text
from sce_video.utils.downloads import cache_folder
from sce_video.utils.run_files import MODEL_PREFIX, is_model

CHECKPOINT = "epoch_0.pth"  # weights before any training of this package
#: Counts up when the files of a run change.
_FORMAT = 2


@dataclass(frozen=True)
class ImportedEncoder:
    """An encoder that :func:`import_encoder` has written.

    Attributes:
        backbone: Config of the backbone.
        settings: Its input.
        parameters: Of the backbone.
        unused: Weights in the files of the model that belong to other parts.
        has_text: Whether texts can be embedded, too.
        checkpoint: Its file.
    """

    backbone: dict[str, Any]
    settings: ProcessorSettings
    parameters: int
    unused: int
    has_text: bool
    checkpoint: str


def run_of_model(run: str | os.PathLike) -> str:
    """A run or checkpoint unchanged; of ``hf:MODEL``, the folder of a run made for it.

    The folder is in the cache (``SCE_VIDEO_CACHE``, or ``sce_video`` in the user's cache folder),
    made once for each state of the model's files. Everything is the model's own: pooling, frames,
    rate. See :func:`import_encoder` for other settings.

    Raises:
        ValueError: see :func:`import_encoder`.
    """
    if not is_model(run):
        return os.fspath(run)
    name = os.fspath(run).removeprefix(MODEL_PREFIX)
    folder = find_model(name)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    states = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    text = json.dumps([_FORMAT, str(folder.resolve()), states])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    out = cache_folder() / "encoders" / digest / _short_name(name)
    if not (out / CONFIG).is_file():  # written last
        import_encoder(name, out, folder=folder)
    return str(out)


def _short_name(name: str) -> str:
    return Path(os.path.abspath(name)).name if os.path.isdir(name) else name.replace("/", "--")


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

    Returns:
        What was found and written.

    Raises:
        EncoderError: the model cannot be found or read, is of no known family, of another task, or
            asks for code of its own.
        ValueError: it has no such pooling, or cannot take such clips.
        MissingPackageError: transformers is not installed.
    """
    folder = find_model(name.removeprefix(MODEL_PREFIX)) if folder is None else folder
    config = read_config(folder)
    family = family_of(config.model_type)
    brought = brought_pool(folder, config)
    pool = brought or family.pools[0] if pool is None else pool
    known = [p for p in family.pools if p == brought or p not in (family.classifier or ())]
    if pool not in known:
        raise ValueError(f"pool of {name} must be one of {', '.join(known)}, got {pool!r}")
    settings = read_processor(folder, config).with_clip(frames, fps)
    architecture = architecture_of(config)
    _check_frames(name, architecture, settings)
    parts, unused = load_parts(folder, config, pool)
    backbone: dict[str, Any] = {"type": "HFEncoder", "architecture": architecture, "pool": pool}
    if settings.in_float:
        backbone["resize_to"] = settings.crop_size
    cfg = Config(encoder_config(backbone, settings))
    weights = weights_of(parts)
    text = stored_text(folder, config) if "text_model" in parts else None
    meta: dict[str, Any] = {"cfg": cfg.pretty_text, "encoder": {"name": name, "pool": pool}}
    if text is not None:
        meta["text"] = text
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    save_checkpoint_file({"meta": meta, "state_dict": weights}, out / CHECKPOINT)
    write_text(out / CONFIG, cfg.pretty_text)
    of_backbone = [parts[key] for key in ("network", "pooler") if key in parts]
    return ImportedEncoder(
        backbone=backbone,
        settings=settings,
        parameters=sum(p.numel() for part in of_backbone for p in part.parameters()),
        unused=unused,
        has_text=text is not None,
        checkpoint=str(out / CHECKPOINT),
    )


def _check_frames(name: str, architecture: dict[str, Any], settings: ProcessorSettings) -> None:
    """Raise ValueError unless the encoder takes clips of these frames and this size."""
    try:
        with torch.device("meta"):  # no memory, no computation
            encoder = MODELS.build(dict(type="HFEncoder", architecture=architecture))
    except (KeyError, RuntimeError) as error:  # a name of no activation, negative sizes
        raise EncoderError(f"{name}: its network cannot be built: {error}") from error
    side = settings.crop_size
    try:
        encoder.check_clip(settings.num_frames, side, side)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
