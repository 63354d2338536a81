"""Files, settings and weights of models in transformers format."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.weights import bounded_network, read_tensors
from sce_video.models.backbones.hf_encoder import config_of, family_of, transformers
from sce_video.utils.errors import MissingPackageError, UserError
from sce_video.utils.files import read_json
from sce_video.utils.records import at
from sce_video.utils.run_files import MODEL_CONFIG

#: Patterns for the files to download from the hub: settings and weights, but no code
_SETTINGS = ["*.json", "*.txt", "*.model"]
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_WEIGHT_FILES = (
    *("model.safetensors", "model-*-of-*.safetensors"),
    *("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
#: Hub account that owns timm's networks.
TIMM_OWNER = "timm/"


#: Errors raised by building a network with impossible sizes, such as negative ones
UNBUILT = (
    *(ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError),
    *(TypeError, ValueError),
)


class EncoderError(UserError, ValueError):
    """Error raised if a model cannot be found, read or used as an encoder."""


def find_model(name: str) -> Path:
    """Return the local folder of a model: the given folder, or a copy of a model on the hub.

    Only settings and weights are downloaded, no code.

    Raises:
        EncoderError: If ``name`` is neither a folder with a ``config.json`` nor the name of a model
            in the local cache or on a reachable hub.
    """
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, MODEL_CONFIG)):
            raise EncoderError(
                f"{name} is not the folder of a model, because it has no {MODEL_CONFIG}"
            )
        return Path(name)
    if not _HUB_NAME.fullmatch(name):
        raise EncoderError(
            f"{name} is neither a folder nor a name on the hub. Give the folder of a model, as "
            "save_pretrained() writes it, or a name of the form owner/model"
        )
    # Report a missing package before sending a request. timm's networks on the hub have their own
    # format and do not need transformers.
    if not name.startswith(TIMM_OWNER):
        transformers()
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingPackageError(
            f"names on the hub need the package huggingface_hub ({error}). Run pip install "
            "'sce-video[hf]', or give a local folder"
        ) from error

    # Look for safetensors first and fetch pickles only if there are none, because fetching both
    # would double the download. Pickles are only read as data.
    try:
        for weights in _WEIGHTS:
            folder = Path(snapshot_download(name, allow_patterns=[*_SETTINGS, weights]))
            if any(folder.glob(weights)):
                break
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        # An OSError means that the network or disk space is lacking. Hub errors state their reason.
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error)
        raise EncoderError(
            f"{name} is not a local folder, not in the local cache, and cannot be fetched from the "
            f"hub ({reason}). Check the name and your internet connection, or give a local folder"
        ) from error
    return folder


def read_encoder_config(folder: Path) -> Any:
    """Read the ``PreTrainedConfig`` of a model; raise EncoderError if its family is unknown."""
    stored = read_json(folder / MODEL_CONFIG)
    if not isinstance(stored, dict):
        raise EncoderError(f"{folder / MODEL_CONFIG} is not the config of a model")
    if at(stored, "model_type") == "pe_audio_video":  # Perception Encoder includes an audio part
        video = at(stored.pop("audio_video_config", None), "video_config")
        stored |= {"model_type": "pe_video", "video_config": video}
    try:
        return config_of(stored)
    except ValueError as error:
        raise EncoderError(f"{folder / MODEL_CONFIG}: {error}") from error


def brought_pool(folder: Path, config: Any) -> str | None:
    """Return the pooling that a classifier provides; None for other models."""
    classifier = family_of(config.model_type).classifier
    architectures = at(read_json(folder / MODEL_CONFIG), "architectures", list)
    if classifier is None or architectures is None:
        return None
    brings = classifier.model in architectures and getattr(config, "use_mean_pooling", True)
    return classifier.pool if brings else None


@contextmanager
def bounded_by_files(folder: Path) -> Iterator[None]:
    """Build networks inside the block without memory, limited to the size of the weight files."""
    paths = {path for pattern in _WEIGHT_FILES for path in folder.glob(pattern)}
    size = sum(path.stat().st_size for path in paths)
    with torch.device("meta"), bounded_network({"": torch.empty(size, dtype=torch.uint8)}):
        yield


def load_parts(folder: Path, config: Any, pool: str) -> tuple[dict[str, nn.Module], int]:
    """Load the parts of a model in float32, and count the weights of unused parts.

    The parts are ``network`` and, if the model has them, ``pooler`` (if ``pool`` belongs to a
    classifier or a projection) and the parts for its family's ``text``. Unused parts are a decoder,
    a classifier, or an audio encoder.

    Raises:
        EncoderError: If the files lack weights of the encoder, contain weights that do not belong
            to it, or cannot be read.
    """
    package = transformers()
    family = family_of(config.model_type)
    name = family.built_by(pool)
    model, info = _with_weights(getattr(package, name), config, folder)
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("classifier."))
    mismatched = sorted(str(entry[0]) for entry in info["mismatched_keys"])
    missing += [key for key in mismatched if not key.startswith("classifier.")]
    if missing:
        raise EncoderError(
            f"{folder} lacks {len(missing)} weights of {name}, the first is {missing[0]}. It "
            "contains a model for another task, or a different network"
        )
    # All encoder weights must be used, but decoder and classifier weights may be left over. Files
    # from transformers 4 also contain position ids, which are not weights.
    prefix = f"{model.base_model_prefix}."
    whole = model if name == family.model else model.base_model
    stray = sorted(
        key
        for key in info["unexpected_keys"]
        if not key.endswith(".position_ids")
        and any(hasattr(whole, k.partition(".")[0]) for k in (key, key.removeprefix(prefix)))
    )
    if stray:
        raise EncoderError(
            f"{folder} contains {len(stray)} weights that {name} in transformers "
            f"{package.__version__} does not have, the first is {stray[0]}. It contains a "
            "different network, or uses weight names that this version does not support"
        )
    parts = {part: getattr(model, part) for part in family.text}
    parts["network"], parts["pooler"] = family.split(model, pool)
    return parts, len(info["unexpected_keys"])


def _with_weights(kind: Any, config: Any, folder: Path) -> tuple[Any, dict[str, list]]:
    """Load a transformers model with the weights in a folder, and the weights that do not match.

    transformers gets a config built here and tensors that were read as data. It does not get the
    folder, because it would look there for adapters and other configs.
    """
    logging = transformers().utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # this package itself reports unused weights
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        # Build the network once just to check its size, including the text network, which the
        # encoder lacks. from_pretrained would create lists and tables of any size before it reads
        # the weights.
        with bounded_by_files(folder):
            kind(config)
        return kind.from_pretrained(
            None,
            config=config,
            state_dict=read_weights(folder),
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # only unused classifier weights may differ
        )
    except EncoderError:
        raise
    except (*UNBUILT, OSError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise EncoderError(f"the weights in {folder} cannot be read: {reason}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a transformers or timm model from one or several files.

    EncoderError, ValueError or FileNotFoundError is raised if they are damaged or missing.
    """
    for pattern in _WEIGHT_FILES:
        weights: dict[str, torch.Tensor] = {}
        for file in sorted(filter(Path.is_file, folder.glob(pattern))):
            try:
                plain = file.suffix == ".safetensors"
                content = read_tensors(file) if plain else load_checkpoint_file(file)
            except SafetensorError as error:
                raise EncoderError(f"the weights in {folder} are damaged: {error}") from error
            weights |= {key: value for key, value in content.items() if torch.is_tensor(value)}
        if weights:
            return weights
    raise FileNotFoundError(f"no weights in {folder}. Expected {' or '.join(_WEIGHT_FILES[::2])}")


#: Processor files, and the entry of each file that contains its settings
_FILES = (
    ("video_preprocessor_config.json", ""),
    ("preprocessor_config.json", ""),
    ("processor_config.json", "video_processor"),
    ("processor_config.json", "image_processor"),
)
#: Names for Pillow's interpolation constants, which processors store as numbers
_INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}
#: The only supported scale factor for pixel values. It maps bytes to [0, 1].
_SCALE = 1 / 255
#: Default settings of a processor
_PROCESSOR_DEFAULTS = {
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_center_crop"), True),
    **dict.fromkeys(("do_pad", "size", "crop_size", "num_frames", "fps")),
    **{"resample": 2, "rescale_factor": _SCALE},
}
#: Number of frames per clip if neither the processor nor the config specifies it
_NUM_FRAMES = 16


@dataclass(frozen=True)
class ProcessorSettings:
    """Input settings of an encoder.

    Attributes:
        mean: Mean per channel of frames in 0..1.
        std: Standard deviation per channel of frames in 0..1.
        short_side: Length of a frame's short side after resizing, in pixels.
        crop_size: Side of the encoder's square input in pixels.
        interpolation: "bilinear" or "bicubic", both antialiased.
        square: Whether frames are squashed to a square instead of cropped.
        in_float: Whether frames are resized without rounding, after they are scaled to 0..1. This
            is the case for DINOv3, and for SigLIP 2 with variable resolution, whose ``crop_size``
            is the side of a square with all its patches.
        num_frames: T, number of frames in a clip.
        clip_duration: Duration of a clip in seconds; None spreads the frames over the whole video.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    short_side: int
    crop_size: int
    interpolation: str
    square: bool
    in_float: bool
    num_frames: int
    clip_duration: float | None

    def with_clip(self, frames: int | None, fps: float | None) -> ProcessorSettings:
        """Return a copy with a different frame count or frame rate. Both must be positive."""
        if frames is not None and frames < 1:
            raise ValueError(f"frames must be at least 1, got {frames}")
        if fps is not None and not 0 < fps < float("inf"):
            raise ValueError(f"fps must be positive frames per second, got {fps}")
        count = frames or self.num_frames
        if fps is None and self.clip_duration is not None:
            fps = self.num_frames / self.clip_duration
        return replace(self, num_frames=count, clip_duration=None if fps is None else count / fps)


def read_processor(folder: Path, config: Any) -> ProcessorSettings:
    """Read a processor's settings; raise EncoderError if none exist or a step is unknown."""
    path, stored = _stored(folder)
    family = family_of(config.model_type)
    try:
        short_side, crop, square = _sizes(stored, config)
        mean, std = [0.0] * 3, [1.0] * 3
        if family.normalized and stored["do_normalize"] is not False:
            mean, std = stored["image_mean"], stored["image_std"]
        vision = getattr(config, family.part) if family.part else config
        if family.per_frame:
            frames = 1
        elif family.fixed_frames:
            frames = vision.num_frames
        else:
            own = getattr(vision, "frames_per_clip", _NUM_FRAMES)
            frames = stored["num_frames"] or own
        settings = ProcessorSettings(
            mean=tuple(map(float, mean)),
            std=tuple(map(float, std)),
            short_side=short_side,
            crop_size=crop,
            interpolation=_INTERPOLATIONS[stored["resample"]],
            square=square,
            in_float=family.in_float,
            num_frames=int(frames),
            clip_duration=None,
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise EncoderError(
            f"{path} contains a step that is not supported ({type(error).__name__}: {error}). "
            "Resizing (bilinear, bicubic), a central crop, scaling by 1/255 and normalisation are "
            "supported"
        ) from error
    rate = stored["fps"] or family.frames_per_second
    if rate is None:
        return settings
    return replace(settings, clip_duration=settings.num_frames / float(rate))


def _stored(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the file with a processor's settings, and the settings with all defaults."""
    for name, entry in _FILES:
        path = folder / name
        if path.is_file():
            stored = read_json(path)
            stored = at(stored, entry) if entry else stored
            if isinstance(stored, dict):
                return path, {**_PROCESSOR_DEFAULTS, **stored}
    raise EncoderError(
        f"{folder} contains no processor settings ({_FILES[0][0]} or {_FILES[1][0]}), which state "
        "normalisation and size. Save the processor there as well (save_pretrained)"
    )


def _sizes(stored: Mapping[str, Any], config: Any) -> tuple[int, int, bool]:
    """Return short side, crop side, and whether frames are squashed."""
    if stored["do_resize"] is False or stored["do_rescale"] is False or stored["do_pad"]:
        raise ValueError("do_resize or do_rescale is off, or do_pad is on")
    if abs(float(stored["rescale_factor"]) - _SCALE) > 1e-9:
        raise ValueError(f"rescale_factor must be 1/255, got {stored['rescale_factor']}")
    family = family_of(config.model_type)
    if family.in_patches:
        rows = math.isqrt(most := int(stored["max_num_patches"]))
        if rows**2 != most or rows < 1:
            raise ValueError(f"max_num_patches is {most}, which is not a square number")
        whole = rows * config.vision_config.patch_size
        return whole, whole, True
    size = stored["size"]
    side: Any = size if isinstance(size, int) else at(size, "shortest_edge")
    if isinstance(size, dict) and side is None:
        side, width = int(size["height"]), int(size["width"])
        if side != width:
            raise ValueError(f"size is {side}x{width}, which is not square")
        return side, side, True
    # By default, transformers' image processors crop. Without a crop, frames of different shapes
    # could not be stacked.
    if stored["do_center_crop"] is False or stored["crop_size"] is None:
        raise ValueError("there is no crop (do_center_crop, crop_size)")
    crop = stored["crop_size"]
    crop = crop if isinstance(crop, int) else int(crop["height"])
    if family.short_side_ratio is not None:
        side = int(crop * family.short_side_ratio)
    if not 1 <= crop <= int(side):
        raise ValueError(f"cannot take a crop of {crop} from frames whose short side is {side}")
    return int(side), crop, False
