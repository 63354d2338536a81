"""Throughput of image loading on one core: ours, torchvision's pipeline on PIL, other loaders.

    python benchmarks/image_loading.py [--json OUT] [--seconds 60] [--size 375 500] [--images 16]

A sample: one JPEG file, two random resized crops of 224 pixels, area 0.2 to 1. The files are
generated with the spectrum of photographs (amplitude falls as 1/frequency), quality 90: with the
default size, about 115 kB each as in ImageNet. Every candidate makes a batch of all files, with the
same boxes, as a loader worker does; alternating:

    PIL                 torchvision's: Image.open, convert("RGB"), and for each view crop, resize
                        (bilinear, which antialiases), stacked to uint8 arrays (N, H, W, 3)
    PIL, ToTensor       the same to float tensors (N, 3, H, W), which torchvision's loaders ship
    ours                ImageDataset with LoadImage(reduced=True), with its time limit and list of
                        bad files, and collate_views: uint8 (N, 1, H, W, 3)
    ours, as PIL        the same with LoadImage(resize="pil"): the pixels of PIL
    OpenCV              cv2.imdecode and cv2.resize, bilinear without antialiasing, stacked
    simplejpeg          simplejpeg.decode_jpeg and the same resizing, where it is installed
    PIL, decode only    Image.open and convert("RGB")
    OpenCV, decode only cv2.imdecode: the lower limit of ours

The JSON's ``ratios`` are ratios of the medians of CPU time to PIL (``ratios_wall``: of wall time).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import side_by_side as sbs
import torch
from PIL import Image

from sce_video.datasets import ImageDataset, SampleRequest, collate_views
from sce_video.datasets.transforms import LoadImage, PackClips, RandomResizedCropClips, random_box
from sce_video.utils.atomic_file import write_json

SIZE, AREA, ASPECT, NUM_VIEWS = 224, (0.2, 1.0), (3 / 4, 4 / 3), 2
BASELINE = "PIL"


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


def ours(paths: list[str], resize: str) -> sbs.Sample:
    """A function that makes a batch of our data set."""
    pipeline = [
        LoadImage(NUM_VIEWS, resize=resize, reduced=True),
        RandomResizedCropClips(SIZE, AREA, ASPECT),
        PackClips(),
    ]
    dataset = ImageDataset(str(Path(paths[0]).parents[1]), pipeline=pipeline)

    def batch(_: str, seed: int) -> None:
        requests = [SampleRequest(i, seed * len(paths) + i) for i in range(len(paths))]
        made = collate_views(dataset.__getitems__(requests))
        assert made["inputs"][1].shape == (len(paths), 1, SIZE, SIZE, 3) and not made["failures"]

    return batch


def decode_by_pil(path: str) -> Image.Image:
    """As torchvision's ImageFolder."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def pil(paths: list[str], as_tensor: bool) -> sbs.Sample:
    """torchvision's ImageFolder and RandomResizedCrop, applied twice; and its ToTensor."""

    def view(image: Image.Image, box: tuple[int, int, int, int]) -> torch.Tensor:
        top, left, height, width = box
        part = image.crop((left, top, left + width, top + height))
        resized = part.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        array = torch.from_numpy(np.array(resized))
        if not as_tensor:
            return array
        return array.permute(2, 0, 1).contiguous().to(torch.float32).div(255)

    def batch(_: str, seed: int) -> None:
        samples = []
        for number, path in enumerate(paths):
            image = decode_by_pil(path)
            cut = boxes((image.height, image.width), seed * len(paths) + number)
            samples.append([view(image, box) for box in cut])
        made = [torch.stack(views) for views in zip(*samples, strict=True)]
        assert len(made[1]) == len(paths)

    return batch


def opencv(paths: list[str], decode: Callable[[str], np.ndarray]) -> sbs.Sample:
    """Another decoder, and OpenCV's bilinear resizing."""

    def batch(_: str, seed: int) -> None:
        made = np.empty((NUM_VIEWS, len(paths), SIZE, SIZE, 3), dtype=np.uint8)
        for number, path in enumerate(paths):
            image = decode(path)
            cut = boxes(image.shape[:2], seed * len(paths) + number)
            for view, (top, left, height, width) in zip(made[:, number], cut, strict=True):
                cv2.resize(image[top : top + height, left : left + width], (SIZE, SIZE), dst=view)

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


def by_simplejpeg(path: str) -> np.ndarray:
    """(H, W, 3) uint8 RGB."""
    import simplejpeg

    with open(path, "rb") as file:
        return simplejpeg.decode_jpeg(file.read(), "RGB")


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
        candidates: dict[str, sbs.Sample] = {
            BASELINE: pil(paths, as_tensor=False),
            "PIL, ToTensor": pil(paths, as_tensor=True),
            "ours": ours(paths, "smoothed"),
            "ours, as PIL": ours(paths, "pil"),
            "OpenCV": opencv(paths, by_opencv),
            "PIL, decode only": decode_only(paths, decode_by_pil),
            "OpenCV, decode only": decode_only(paths, by_opencv),
        }
        if importlib.util.find_spec("simplejpeg"):
            candidates["simplejpeg"] = opencv(paths, by_simplejpeg)
        measured = sbs.measure_interleaved([sbs.Video("", folder)], candidates, args.seconds)
    times = {name: measured["", "original", name] for name in candidates}
    base = times[BASELINE]
    values: dict[str, Any] = {
        "ratios": {n: round(t.per_second / base.per_second, 3) for n, t in times.items()},
        "ratios_wall": {
            n: round(t.per_second_wall / base.per_second_wall, 3) for n, t in times.items()
        },
        "images_per_second": {n: round(t.per_second * len(paths), 1) for n, t in times.items()},
        "bytes": num_bytes,
        "size": list(args.size),
        "batch": len(paths),
        "rounds": len(base.cpu),
        "machine": sbs.machine(core),
    }
    print(f"{len(paths)} images of {args.size[1]} x {args.size[0]}, {num_bytes / 1e3:.0f} kB each")
    for name, speed in values["images_per_second"].items():
        ratio, wall = values["ratios"][name], values["ratios_wall"][name]
        print(f"  {name:<20}{speed:8.0f} images/s per core  {ratio:6.2f} x PIL (wall {wall:.2f})")
    if args.json:
        write_json(args.json, values)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
