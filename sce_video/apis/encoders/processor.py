"""Normalisation, size, frames and rate of a model's own processor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sce_video.apis.encoders.source import EncoderError
from sce_video.models.backbones.hf_families import family_of
from sce_video.utils.json_files import read_json

#: Files of a processor, with the entry that holds its settings.
_FILES = (
    ("video_preprocessor_config.json", ""),
    ("preprocessor_config.json", ""),
    ("processor_config.json", "video_processor"),
    ("processor_config.json", "image_processor"),
)
_INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}
_SCALE = 1 / 255
#: V-JEPA 2's processor computes the short side from the crop (transformers, video_processing_
#: vjepa2.py).
_VJEPA2_RATIO = 256 / 224


@dataclass(frozen=True)
class ProcessorSettings:
    """The input of an encoder.

    Attributes:
        mean: Per channel, of frames in 0..1.
        std: Likewise.
        short_side: Pixels.
        crop_size: Side of the square that the encoder sees.
        interpolation: "bilinear" or "bicubic", antialiased.
        square: Frames are squashed to a square instead of cropped.
        in_float: Resized after scaling to 0..1, so without rounding (DINOv3).
        num_frames: T, frames of a clip.
        clip_duration: Seconds; None spreads the frames over the whole video.
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
        """The same with another number or rate of frames.

        Raises:
            ValueError: one of them is not positive.
        """
        if frames is not None and frames < 1:
            raise ValueError(f"frames must be at least 1, got {frames}")
        if fps is not None and not 0 < fps < float("inf"):
            raise ValueError(f"fps must be positive frames per second, got {fps}")
        count = self.num_frames if frames is None else frames
        if fps is not None:
            return replace(self, num_frames=count, clip_duration=count / fps)
        rate = None if self.clip_duration is None else self.num_frames / self.clip_duration
        return replace(self, num_frames=count, clip_duration=None if rate is None else count / rate)


def read_processor(folder: Path, config: Any) -> ProcessorSettings:
    """The settings in the files of a model's processor.

    Raises:
        EncoderError: there is no such file, or it asks for a step that is not known here.
    """
    path, stored = _stored(folder)
    family = family_of(config.model_type)
    try:
        short_side, crop, square = _sizes(stored, config)
        resample = stored.get("resample", 2)
        settings = ProcessorSettings(
            mean=_numbers(stored.get("image_mean"), 0.0) if _does(stored, "normalize") else (0.0,),
            std=_numbers(stored.get("image_std"), 1.0) if _does(stored, "normalize") else (1.0,),
            short_side=short_side,
            crop_size=crop,
            interpolation=_INTERPOLATIONS[resample],
            square=square,
            in_float=config.model_type == "dinov3_vit",
            num_frames=_num_frames(stored, config),
            clip_duration=None,
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise EncoderError(
            f"{path} asks for a step that is not known here ({type(error).__name__}: {error}); "
            "known are resizing (bilinear, bicubic), a central crop, scaling by 1/255 and "
            "normalisation"
        ) from error
    rate = stored.get("fps") or family.frames_per_second
    if rate is None:
        return settings
    return replace(settings, clip_duration=settings.num_frames / float(rate))


def _stored(folder: Path) -> tuple[Path, dict[str, Any]]:
    for name, entry in _FILES:
        path = folder / name
        if path.is_file():
            stored = read_json(path)
            stored = stored.get(entry) if entry and isinstance(stored, dict) else stored
            if isinstance(stored, dict):
                return path, stored
    raise EncoderError(
        f"{folder} has no settings of a processor ({_FILES[0][0]} or {_FILES[1][0]}), which name "
        "normalisation and size: save the processor there too (save_pretrained)"
    )


def _does(stored: dict[str, Any], step: str) -> bool:
    return stored.get(f"do_{step}", True) is not False


def _sizes(stored: dict[str, Any], config: Any) -> tuple[int, int, bool]:
    """Short side, crop, and whether frames are squashed."""
    if not _does(stored, "resize") or not _does(stored, "rescale") or stored.get("do_pad"):
        raise ValueError("do_resize or do_rescale is off, or do_pad is on")
    if abs(float(stored.get("rescale_factor", _SCALE)) - _SCALE) > 1e-9:
        raise ValueError(f"rescale_factor is {stored['rescale_factor']}")
    size = stored.get("size")
    side: Any = size if isinstance(size, int) else (size or {}).get("shortest_edge")
    if isinstance(size, dict) and side is None:
        side, width = int(size["height"]), int(size["width"])
        if side != width:
            raise ValueError(f"size is {side}x{width}, no square")
        return side, side, True
    # transformers' classes of images crop, unless told not to; without a crop frames of different
    # shapes could not be stacked.
    if stored.get("do_center_crop") is False or stored.get("crop_size") is None:
        raise ValueError("there is no crop (do_center_crop, crop_size)")
    crop = stored["crop_size"]
    crop = crop if isinstance(crop, int) else int(crop["height"])
    if config.model_type == "vjepa2":
        side = int(crop * _VJEPA2_RATIO)
    if not 1 <= crop <= int(side):
        raise ValueError(f"a crop of {crop} from a short side of {side}")
    return int(side), crop, False


def _numbers(value: Any, default: float) -> tuple[float, ...]:
    if value is None:
        raise ValueError(f"image_mean or image_std is missing (default {default})")
    return tuple(float(number) for number in value)


def _num_frames(stored: dict[str, Any], config: Any) -> int:
    if family_of(config.model_type).per_frame:
        return 1
    if config.model_type == "vjepa2":
        return int(stored.get("num_frames") or config.frames_per_clip)
    return int(getattr(config, "vision_config", config).num_frames)
