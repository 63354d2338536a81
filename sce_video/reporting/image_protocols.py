"""Protocols on images: what the evaluation of the paper's tables shares with a result."""

from __future__ import annotations

from typing import Any

from sce_video.published import IMAGE_METHODS, IMAGE_TRAINING_SETS, linear_rate
from sce_video.reporting.result_files import count_of, nested
from sce_video.reporting.tested_sets import check_size

#: Protocols on feature files, by tools/transfer.py.
TRANSFER = ("many_shot", "low_shot_svm")
#: (clips, crops) of a test on images.
ONE_VIEW = (1, 1)
#: Short side, central crop and filter of the test images, as in linusericsson/ssl-transfer and
#: salesforce/PCL. A linear evaluation at 224 has 256 and 224 (appendix D.1), without a stated
#: filter; smaller images are tested as they are.
_PIPELINES = {"many_shot": (224, 224, "bicubic"), "low_shot_svm": (256, 224, "bilinear")}
_SHORT_SIDE = {224: 256}
_VALUES_OF_C = 45  # of linusericsson/ssl-transfer, linear.py
_DRAWS = 5  # of salesforce/PCL, eval_svm_voc.py


def check_image_pipeline(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Deviations in the size of the test images."""
    pipeline = nested(protocol, "test", "pipeline")
    if not isinstance(pipeline, list):
        return ["the size of the test images is not stated"]
    short = crop = interpolation = None
    for step in pipeline:
        kind = str(nested(step, "type")).rpartition(".")[2]
        if kind == "ResizeShortSide":
            short = nested(step, "size")
        elif kind == "CenterCropClips":
            crop = nested(step, "size")
        elif kind == "PillowResizeCenterCrop":
            short, crop = nested(step, "size"), nested(step, "crop")
            interpolation = nested(step, "interpolation")
    size = benchmark["size"]
    default = (_SHORT_SIDE.get(size, size), size, interpolation)
    wanted = _PIPELINES.get(benchmark["protocol"], default)
    if size not in _SHORT_SIDE:  # the images have this size
        short, crop = short or size, crop or size
    if (short, crop, interpolation) == wanted:
        return []
    return [f"test images {_words(short, crop, interpolation)} instead of {_words(*wanted)}"]


def _words(short: Any, crop: Any, interpolation: Any) -> str:
    """``resized to 256 (bilinear), cropped to 224``."""
    resized = "not resized" if short is None else f"resized to {short}"
    how = f" ({interpolation})" if interpolation else ""
    return f"{resized}{how}, {'not cropped' if crop is None else f'cropped to {crop}'}"


def check_linear_rate(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Deviations in the learning rate of a linear evaluation, as far as it is recorded."""
    rate = nested(protocol, "checkpoint", "training", "optimizer", "lr")
    method = benchmark["pretraining"]
    if benchmark["protocol"] != "linear" or method not in IMAGE_METHODS:
        return []
    usual = linear_rate(method)
    return [] if rate in (None, usual) else [f"a learning rate of {rate} instead of {usual:g}"]


def check_transfer(
    protocol: dict[str, Any], benchmark: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Obstacles and deviations of a result on feature files (tools/transfer.py)."""
    obstacles: list[str] = []
    deviations: list[str] = []
    parts = nested(protocol, "images")
    counts = {
        name: count_of(nested(parts, name)) for name in ("train", "val") if nested(parts, name)
    }
    if "train" not in counts or None in counts.values():
        obstacles.append("the number of training images is not stated")
    else:
        total = sum(count for count in counts.values() if count is not None)
        published = IMAGE_TRAINING_SETS.get(benchmark["dataset"])
        check_size(total, published, "training images", obstacles, deviations)
    files = nested(protocol, "files")
    hashes = {
        nested(file, "protocol", "checkpoint", "sha256")
        for file in (files.values() if isinstance(files, dict) else ())
    }
    if len(hashes - {None}) > 1:
        obstacles.append("the features of the parts were made by different checkpoints")
    if benchmark["protocol"] == "many_shot":
        tried = nested(protocol, "validation")
        if not isinstance(tried, dict) or len(tried) != _VALUES_OF_C:
            number = len(tried) if isinstance(tried, dict) else 0
            how = f"chosen among {number} values" if number else "given"
            deviations.append(f"C {how}, the paper's chosen among {_VALUES_OF_C}")
    elif count_of(protocol.get("draws")) != _DRAWS:
        deviations.append(f"{protocol.get('draws')} draws instead of {_DRAWS}")
    return obstacles, deviations
