"""Throughput of image loading on one core: ours, torchvision's pipeline on PIL, other loaders.

    python benchmarks/image_loading.py [--json OUT] [--seconds 60] [--size 375 500] [--images 16]

A sample: one JPEG file, two random resized crops of 224 pixels, area 0.2 to 1. The files are
generated with the spectrum of photographs (amplitude falls as 1/frequency), quality 90: with the
default size, about 115 kB each as in ImageNet. Every candidate makes a batch of all files, with the
same boxes, as a loader worker does; alternating. What a loader ships differs: torchvision's ships
normalised float tensors, ours uint8, which the data preprocessor converts on the device of the
model, where augmentation runs. So there are three comparisons:

    what each loader ships      "ours" with "torchvision"
    to uint8 pixels             "ours" with "PIL"
    to normalised floats        "ours, normalised" with "torchvision"

    PIL                 Image.open, convert("RGB"), and for each view crop, resize (bilinear, which
                        antialiases), stacked to uint8 arrays (N, H, W, 3)
    torchvision         the same with ToTensor and Normalize, float tensors (N, 3, H, W); the flip
                        is left out
    ours                ImageDataset with LoadImage(reduced=True), with its time limit and list of
                        bad files, and collate_views: uint8 (N, 1, H, W, 3), the pixels of PIL
    ours, normalised    and VideoDataPreprocessor on the same core: float (N, 3, 1, H, W)
    ours, no time limit ImageDataset(timeout=None), which needs no helper thread
    OpenCV              cv2.imdecode and cv2.resize, bilinear without antialiasing, stacked
    simplejpeg          simplejpeg.decode_jpeg and our resizing, where it is installed
    simplejpeg, fast    with the fast inverse DCT and colour upsampling
    PIL, decode only    Image.open and convert("RGB")
    OpenCV, decode only cv2.imdecode: the lower limit of ours
    OpenCV, at 1/8      the same at 1/8 of the size: little more than entropy decoding

The JSON's ``ratios`` are ratios of the medians of CPU time to PIL (``ratios_wall``: of wall time),
``ratios_torchvision`` those to torchvision.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import side_by_side as sbs
import torch
from PIL import Image

from sce_video.datasets import ImageDataset, SampleRequest, collate_views
from sce_video.datasets.transforms import LoadImage, PackClips, RandomResizedCropClips, random_box
from sce_video.datasets.transforms.resizing import Resize, resize_as_pil, resize_linear
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.utils.atomic_file import write_json

SIZE, AREA, ASPECT, NUM_VIEWS = 224, (0.2, 1.0), (3 / 4, 4 / 3), 2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photograph_like(height: int, width: int, seed: int) -> np.ndarray:
    """(H, W, 3) uint8: noise whose amplitude falls as 1/frequency, colours as 1/frequency^1.3."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1.0

    def noise(exponent: float) -> np.ndarray:
        spectrum = np.fft.rfft2(rng.standard_normal((height, width))) / frequency**exponent
        plane = np.fft.irfft2(spectrum, s=(height, width))
        return plane / plane.std()

    brightness = 52 * noise(1.0)
    image = np.stack([120 + brightness + 15 * noise(1.3) for _ in range(3)], axis=-1)
    return np.clip(image, 0, 255).astype(np.uint8)


def write_images(folder: str, size: tuple[int, int], count: int) -> list[str]:
    """Paths of files of one class in ``folder``."""
    paths = [Path(folder) / f"class/{number:03d}.jpg" for number in range(count)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        Image.fromarray(photograph_like(*size, number)).save(path, quality=90)
    return [str(path) for path in paths]


def boxes(frame_size: tuple[int, int], seed: int) -> list[tuple[int, int, int, int]]:
    """The boxes of our sample with this seed."""
    rng = np.random.default_rng(seed)
    tries = RandomResizedCropClips.tries
    return [random_box(frame_size, AREA, ASPECT, rng.random((tries, 4))) for _ in range(NUM_VIEWS)]


def ours(paths: list[str], normalised: bool = False, timeout: float | None = 60.0) -> sbs.Sample:
    """A function that makes a batch of our data set."""
    pipeline = [
        LoadImage(NUM_VIEWS, reduced=True),
        RandomResizedCropClips(SIZE, AREA, ASPECT),
        PackClips(),
    ]
    root = str(Path(paths[0]).parents[1])
    dataset = ImageDataset(root, pipeline=pipeline, timeout=timeout)
    preprocessor = VideoDataPreprocessor(mean=MEAN, std=STD)

    def batch(_: str, seed: int) -> None:
        requests = [SampleRequest(i, seed * len(paths) + i) for i in range(len(paths))]
        made = collate_views(dataset.__getitems__(requests))
        assert made["inputs"][1].shape == (len(paths), 1, SIZE, SIZE, 3) and not made["failures"]
        if normalised:
            preprocessor(made)

    return batch


def decode_by_pil(path: str) -> Image.Image:
    """As torchvision's ImageFolder."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def pil(paths: list[str], as_tensor: bool) -> sbs.Sample:
    """torchvision's ImageFolder and RandomResizedCrop, twice; and its ToTensor and Normalize."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))

    def view(image: Image.Image, box: tuple[int, int, int, int]) -> torch.Tensor:
        top, left, height, width = box
        part = image.crop((left, top, left + width, top + height))
        resized = part.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        array = torch.from_numpy(np.array(resized))
        if not as_tensor:
            return array
        tensor = array.permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        return tensor.clone().sub_(mean).div_(std)

    def batch(_: str, seed: int) -> None:
        samples = []
        for number, path in enumerate(paths):
            image = decode_by_pil(path)
            cut = boxes((image.height, image.width), seed * len(paths) + number)
            samples.append([view(image, box) for box in cut])
        made = [torch.stack(views) for views in zip(*samples, strict=True)]
        assert len(made[1]) == len(paths)

    return batch


def other(paths: list[str], decode: Callable[[str], np.ndarray], resize: Resize) -> sbs.Sample:
    """Another decoder, and a function that resizes."""

    def batch(_: str, seed: int) -> None:
        made = np.empty((NUM_VIEWS, len(paths), SIZE, SIZE, 3), dtype=np.uint8)
        for number, path in enumerate(paths):
            image = decode(path)
            cut = boxes(image.shape[:2], seed * len(paths) + number)
            for view, (top, left, height, width) in zip(made[:, number], cut, strict=True):
                resize(image[top : top + height, left : left + width], view)

    return batch


def decode_only(paths: list[str], decode: Callable[[str], object]) -> sbs.Sample:
    """Nothing but the decoder."""

    def batch(_: str, seed: int) -> None:
        for path in paths:
            decode(path)

    return batch


def by_opencv(path: str) -> np.ndarray:
    """(H, W, 3) uint8 RGB."""
    image = cv2.imdecode(np.fromfile(path, dtype=np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def at_an_eighth(path: str) -> np.ndarray:
    """(H / 8, W / 8, 3) uint8 BGR."""
    return cv2.imdecode(np.fromfile(path, dtype=np.uint8), cv2.IMREAD_REDUCED_COLOR_8)


def by_simplejpeg(path: str, fast: bool = False) -> np.ndarray:
    """(H, W, 3) uint8 RGB."""
    import simplejpeg

    with open(path, "rb") as file:
        return simplejpeg.decode_jpeg(file.read(), "RGB", fastdct=fast, fastupsample=fast)


def candidates_of(paths: list[str]) -> dict[str, sbs.Sample]:
    """The functions to compare, by name."""
    candidates = {
        "PIL": pil(paths, as_tensor=False),
        "torchvision": pil(paths, as_tensor=True),
        "ours": ours(paths),
        "ours, normalised": ours(paths, normalised=True),
        "ours, no time limit": ours(paths, timeout=None),
        "OpenCV": other(paths, by_opencv, resize_linear),
        "PIL, decode only": decode_only(paths, decode_by_pil),
        "OpenCV, decode only": decode_only(paths, by_opencv),
        "OpenCV, at 1/8": decode_only(paths, at_an_eighth),
    }
    if importlib.util.find_spec("simplejpeg"):
        candidates["simplejpeg"] = other(paths, by_simplejpeg, resize_as_pil)
        fast = partial(by_simplejpeg, fast=True)
        candidates["simplejpeg, fast"] = other(paths, fast, resize_as_pil)
    return candidates


def ratios(times: dict[str, sbs.Times], base: str, speed: str = "per_second") -> dict[str, float]:
    """The speed of each candidate divided by that of one of them."""
    below = getattr(times[base], speed)
    return {name: round(getattr(t, speed) / below, 3) for name, t in times.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description="Throughput of image loading on one core.")
    parser.add_argument("--json", metavar="OUT", help="JSON file for the results")
    parser.add_argument("--seconds", type=float, default=60, help="approximate measuring time")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(375, 500), metavar=("H", "W"), help="of the images"
    )
    parser.add_argument("--images", type=int, default=16, help="number of images of a batch")
    args = parser.parse_args(argv)
    core = sbs.prepare_process()
    with tempfile.TemporaryDirectory(prefix="images_") as folder:
        paths = write_images(folder, tuple(args.size), args.images)
        num_bytes = sum(map(os.path.getsize, paths)) // len(paths)
        candidates = candidates_of(paths)
        measured = sbs.measure_interleaved([sbs.Video("", folder)], candidates, args.seconds)
    times = {name: measured["", "original", name] for name in candidates}
    values: dict[str, Any] = {
        "ratios": ratios(times, "PIL"),
        "ratios_wall": ratios(times, "PIL", "per_second_wall"),
        "ratios_torchvision": ratios(times, "torchvision"),
        "images_per_second": {n: round(t.per_second * len(paths), 1) for n, t in times.items()},
        "bytes": num_bytes,
        "size": list(args.size),
        "batch": len(paths),
        "rounds": len(times["PIL"].cpu),
        "machine": sbs.machine(core),
    }
    print(f"{len(paths)} images of {args.size[1]} x {args.size[0]}, {num_bytes / 1e3:.0f} kB each")
    for name, speed in values["images_per_second"].items():
        first, second = values["ratios"][name], values["ratios_torchvision"][name]
        wall = values["ratios_wall"][name]
        print(
            f"  {name:<20}{speed:8.0f} images/s per core  {first:6.2f} x PIL (wall {wall:.2f})"
            f"  {second:6.2f} x torchvision"
        )
    if args.json:
        write_json(args.json, values)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
