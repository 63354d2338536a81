"""The first and last transforms: open a video, decode its clips in one pass, pack the views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from sce_video.datasets.clip_sampling import (
    ClipIndices,
    differing_pair,
    frames_of_clips,
    neighbours_within,
)
from sce_video.datasets.loading.batches import empty_batch
from sce_video.datasets.pipeline import PackedSample, PipelineResults
from sce_video.datasets.readers import VideoReader, check_backend
from sce_video.datasets.readers.base import (
    MAX_HELD_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_PIXELS,
    ArrayFrames,
    DecodedFrames,
    DecodeLimits,
    ReaderOptions,
    check_deadline,
)
from sce_video.datasets.readers.images import FrameFolderReader, open_jpeg, read_image
from sce_video.datasets.sources import open_video
from sce_video.datasets.transforms.lazy_view import RESIZES, LazyView, is_repeat, render_views
from sce_video.datasets.transforms.sampling import check_view_counts
from sce_video.datasets.transforms.spatial import View, crop_offsets
from sce_video.registry import TRANSFORMS
from sce_video.utils.stored_arguments import Pixels


@TRANSFORMS.register_module()
class OpenVideo:
    """Opening of the file at ``path``.

    Args:
        backend: Registered name of a reader (``av``, ``decord``, ``torchcodec``, ...). All readers
            return the same frames.
        num_threads: Number of threads of the decoder. 1 is best if loader workers use all cores.
        max_pixels: Largest number of pixels (height x width) that a frame may have.
        max_held_bytes: Largest size in bytes of the decoded frames of a sample.
    """

    def __init__(
        self,
        backend: str = "av",
        num_threads: int = 1,
        max_pixels: int = MAX_PIXELS,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        check_backend(backend)
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {num_threads}")
        self.backend, self.num_threads = backend, num_threads
        self.limits = DecodeLimits(max_pixels, max_held_bytes)

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``path`` (and ``deadline``, ``correction`` if present), write ``reader, limits``.

        If ``results`` contains ``open``, for example for rows of a table, it is called instead of
        :func:`~sce_video.datasets.open_video` with ``backend``.
        :func:`~sce_video.datasets.run_pipeline` closes the reader after the last transform.
        """
        options: ReaderOptions = {"num_threads": self.num_threads, "limits": self.limits}
        if "correction" in results:
            options["correction"] = results["correction"]
        if "deadline" in results:
            options["deadline"] = results["deadline"]
        reader = results.get("open", self._open)(results["path"], **options)
        if "opened" in results:
            results["opened"].append(reader)
        if "exit_stack" in results:  # otherwise, the caller closes the reader
            results["exit_stack"].enter_context(reader)
        return results | {"reader": reader, "limits": self.limits}

    def _open(self, path: str, **options: Unpack[ReaderOptions]) -> VideoReader:
        return open_video(path, self.backend, **options)


@TRANSFORMS.register_module()
class DecodeClips:
    """Decoding of the frames of all clips in one ordered pass, with one view per clip.

    Frames that several clips share are decoded once. The views are :class:`LazyView`, uint8
    (T, H, W, 3) arrays that the last transform computes. The frames of an RGB-difference clip are
    ``(grey(frame) - grey(partner) + 255) / 2`` with grey = 0.299 R + 0.587 G + 0.114 B, rounded, in
    three equal channels.

    Args:
        skip_repeats: Whether to replace a partner that repeats its frame
            (:func:`~.lazy_view.is_repeat`), as in footage with an increased frame rate, by the
            clip's next frame that differs. If no frame differs within 0.5 s, the clip keeps its
            colours (:func:`~sce_video.datasets.clip_sampling.differing_pair`). The paper always
            uses the next frame.
    """

    def __init__(self, skip_repeats: bool = False) -> None:
        self.skip_repeats = skip_repeats

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``reader`` and ``clips``, and write ``views``, a list of ``LazyView``.

        ``skip_repeats`` also changes ``clips``. ``differences`` counts RGB-difference clips, clips
        with repeated frames, and clips that keep their colours.
        """
        reader = results.pop("reader")
        clips = results["clips"]
        indices = frames_of_clips(clips)
        frames = reader.decode(indices)
        repeats = [_repeats(frames, indices, clip) for clip in clips]
        wanted = sum(clip.partners is not None for clip in clips)
        repeating = sum(bool(repeated.any()) for repeated in repeats)
        if repeating and self.skip_repeats:
            clips = _without_repeats(reader, clips, repeats, (frames, indices))
            kept = frames_of_clips(clips)
            if not np.isin(kept, indices).all():
                indices, frames = kept, reader.decode(kept)
        coloured = wanted - sum(clip.partners is not None for clip in clips)
        views: list[View] = []
        for clip in clips:
            first, second = clip.frames, clip.partners
            partners = None if second is None else np.searchsorted(indices, second)
            views.append(LazyView(frames, np.searchsorted(indices, first), partners))
        differences = (wanted, repeating, coloured)
        return {**results, "differences": differences, "clips": clips, "views": views}


@TRANSFORMS.register_module()
class DecodeSharedFrames:
    """Decoding of the frames of all clips in one ordered pass. Each frame is kept once.

    This is used for testing with many clips, which overlap in a short video. The views are cut from
    the frames on the device (see :class:`PackVideo`).
    """

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``reader`` and ``clips``, and write ``views``, one ``LazyView`` of F frames.

        ``positions``, (K, T) int64, contain the index of frame t of clip k in this view.
        """
        reader = results.pop("reader")
        wanted = np.stack([clip.frames for clip in results["clips"]])
        if any(clip.partners is not None for clip in results["clips"]):
            raise ValueError("DecodeSharedFrames cannot compute RGB differences. Use DecodeClips")
        indices, positions = np.unique(wanted, return_inverse=True)
        views: list[View] = [LazyView(reader.decode(indices), np.arange(len(indices)))]
        return {**results, "views": views, "positions": positions.reshape(wanted.shape)}


def _repeats(frames: DecodedFrames, indices: np.ndarray, clip: ClipIndices) -> np.ndarray:
    """Return (T,) whether each frame of a clip repeats its partner; all False without partners."""
    if clip.partners is None:
        return np.zeros(len(clip.frames), dtype=bool)
    pairs = np.searchsorted(indices, np.stack([clip.frames, clip.partners], axis=1))
    known = {(i, j): is_repeat(frames[i], frames[j]) for i, j in {*map(tuple, pairs.tolist())}}
    return np.array([known[i, j] for i, j in pairs.tolist()])


def _without_repeats(
    reader: VideoReader,
    clips: Sequence[ClipIndices],
    repeats: Sequence[np.ndarray],
    decoded: tuple[DecodedFrames, np.ndarray],
) -> list[ClipIndices]:
    """Return the clips with new partners for frames that repeat, or with none if none differs."""
    # Compare neighbouring frames in a second pass, so that only a few frames are in memory at once.
    frames, indices = decoded
    around: dict[int, set[int]] = {}
    for clip, repeated in zip(clips, repeats, strict=True):
        for frame in clip.frames[repeated].tolist():
            for other in np.concatenate(neighbours_within(reader.timestamps, clip, frame)).tolist():
                around.setdefault(other, set()).add(frame)
    differing = set()
    for part, images in reader.stream(np.array(sorted(around))) if around else ():
        for number, other in enumerate(part.tolist()):
            image = images[number]
            for frame in around[other]:
                if not is_repeat(frames[int(np.searchsorted(indices, frame))], image):
                    differing.add((frame, other))
    found = []
    for clip, repeated in zip(clips, repeats, strict=True):
        chosen = [
            differing_pair(reader.timestamps, clip, frame, differing)
            for frame in clip.frames[repeated].tolist()
        ]
        if None in chosen:
            clip = replace(clip, partners=None)
        elif chosen:
            assert clip.partners is not None
            pairs = np.stack([clip.frames, clip.partners], axis=1)
            pairs[repeated] = chosen
            clip = replace(clip, frames=pairs[:, 0], partners=pairs[:, 1])
        found.append(clip)
    return found


@TRANSFORMS.register_module()
class OpenFrameFolder(OpenVideo):
    """Opening of the folder of frames at ``path``, with the same limits as ``OpenVideo``.

    ``fps`` is the number of frames per second, 30 for AVA, and ``first`` the number of the image at
    0 s.
    """

    backend, num_threads = "frames", 1

    def __init__(
        self,
        fps: float = 30.0,
        first: int = 1,
        max_pixels: int = MAX_PIXELS,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        if fps <= 0:
            raise ValueError(f"fps must be positive, got {fps}")
        self.fps, self.first = fps, first
        self.limits = DecodeLimits(max_pixels, max_held_bytes)

    def _open(self, path: str, **options: Unpack[ReaderOptions]) -> VideoReader:
        return FrameFolderReader(path, fps=self.fps, first=self.first, **options)


@TRANSFORMS.register_module()
class LoadImage:
    """Decoding of the image at ``path`` as V views (1, H, W, 3), 8-bit RGB by OpenCV.

    The image is decoded once. The EXIF orientation is applied, greyscale is repeated to three
    channels, CMYK is converted, an alpha channel is dropped, and the upper 8 of 16 bits are kept.
    An image of an :class:`~sce_video.datasets.ImageArrayDataset` is used unchanged.

    Args:
        num_views: Number of views V, including the local views.
        max_pixels: Largest number of pixels (height x width) that an image may have.
        num_local_views: Number of local views L. :class:`RandomResizedCropClips` makes the last L
            views smaller, which is called multi-crop (SwAV, arXiv 2006.09882).
        resize: Resizing method of later steps. ``pil`` is bilinear with antialiasing, and matches
            Pillow and torchvision to within 1 level of 255. ``pil_bicubic`` matches to within 2
            levels. ``linear`` has no antialiasing.
        reduced: Whether to decode a JPEG file at 1/2, 1/4 or 1/8 of its size if all views then have
            enough pixels. This is faster, but may shift a crop by half an output pixel.
    """

    def __init__(
        self,
        num_views: int = 2,
        max_pixels: int = MAX_IMAGE_PIXELS,
        num_local_views: int = 0,
        resize: str = "pil",
        reduced: bool = False,
    ) -> None:
        check_view_counts(num_views, num_local_views)
        if resize not in RESIZES:
            raise ValueError(f"resize must be one of {', '.join(RESIZES)}, got {resize!r}")
        self.num_views, self.num_local_views = num_views, num_local_views
        self.limits = DecodeLimits(max_pixels)
        self.resize, self.reduced = resize, reduced

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``image``, or ``path`` (and ``deadline``), and write ``views``, V ``LazyView``.

        Raises:
            VideoDecodeError: If the file cannot be opened or decoded, or is too large, or if the
                deadline has passed.
        """
        image = results.pop("image", None)
        deadline = results.get("deadline")
        if image is None and self.reduced:
            image = open_jpeg(results["path"], self.limits, deadline)
        elif image is None:
            image = read_image(results["path"], self.limits)
        frames = image if isinstance(image, DecodedFrames) else ArrayFrames(image[None])
        check_deadline(results["path"], deadline)
        first, resize = np.zeros(1, dtype=np.int64), RESIZES[self.resize]
        views: list[View] = [LazyView(frames, first, resize=resize) for _ in range(self.num_views)]
        num_local = self.num_local_views
        return {**results, "num_local_views": num_local, "limits": self.limits, "views": views}


@TRANSFORMS.register_module()
class PackClips:
    """Packing of views as uint8 tensors, which the data preprocessor normalises and permutes.

    The crops and the resizing of a :class:`LazyView`, and the flip of :class:`FlipWithBoxes`, are
    computed here, directly in the tensors.
    """

    def __call__(self, results: PipelineResults) -> PackedSample:
        """Read ``views`` and, if present, ``targets``, V tensors in a slot of a batch buffer.

        Returns:
            A dict with ``inputs`` (list of V uint8 tensors (T, H, W, 3)), ``label``, ``index`` and
            ``seed``. If present, it also contains ``clip`` of :class:`~.sampling.OneOfClips`,
            ``differences`` of :class:`DecodeClips`, ``boxes`` (n, 4) in pixels and their
            ``actions`` (n, 80) of 0 and 1, both float32.

        Raises:
            ValueError: If a local view has as many pixels as the first view, because methods
                distinguish local and global views by their size.
        """
        views = results["views"]
        for number in range(len(views) - results.get("num_local_views", 0), len(views)):
            if math.prod(views[number].shape) >= math.prod(views[0].shape):
                (t, h, w, _), (t0, h0, w0, _) = views[number].shape, views[0].shape
                raise ValueError(
                    f"local view {number} has {t} frames of {h}x{w}, so it is not smaller than "
                    f"view 0 with {t0} frames of {h0}x{w0}. Lower local_num_frames of RandomClips "
                    "or local_size of RandomResizedCropClips"
                )
        inputs = pack_views(views, results.get("targets"))
        if results.get("flipped"):
            for view in inputs:
                view.copy_(view.flip(2))
        packed: PackedSample = {
            "inputs": inputs,
            "label": int(results["label"]),
            "index": int(results["index"]),
            "seed": int(results["seed"]),
        }
        if "clip" in results:
            packed["clip"] = int(results["clip"])
        if "differences" in results:
            packed["differences"] = results["differences"]
        if "boxes" in results:
            packed["boxes"] = torch.from_numpy(results["boxes"].astype(np.float32))
        if "actions" in results:
            packed["actions"] = torch.from_numpy(results["actions"].astype(np.float32))
        return packed


@TRANSFORMS.register_module()
class PackBoxes(PackClips):
    """Another name of :class:`PackClips` for recipes with boxes."""


def pack_views(views: Sequence[View], targets: Sequence[Tensor] | None) -> list[Tensor]:
    """Pack views as uint8 tensors (T, H, W, 3), into ``targets`` if the shapes match."""
    shapes = [tuple(view.shape) for view in views]
    if targets is None or [tuple(target.shape) for target in targets] != shapes:
        targets = [torch.empty(shape, dtype=torch.uint8) for shape in shapes]
    pending: list[tuple[LazyView, np.ndarray]] = []
    for view, target in zip(views, targets, strict=True):
        if isinstance(view, LazyView):
            pending.append((view, target.numpy()))
        else:
            target.numpy()[...] = view
    render_views([view for view, _ in pending], [out for _, out in pending])
    return list(targets)


@TRANSFORMS.register_module()
class PackVideo:
    """Packing of the resized frames once, with the positions of the K x C views in them.

    The views are cut on the device, a few at a time (:func:`sce_video.evaluation.view_chunks`),
    because 240 crops of 10 clips x 3 crops x 8 frames share most of their pixels.

    Args:
        crop_size: Side of a crop in pixels.
        num_crops: Number of crops C: 1 for the centre, or 3 along the long side, see
            :func:`crop_offsets`.
        whole: Whether the view is the whole frame, which the network resizes to ``crop_size``.
    """

    def __init__(self, crop_size: Pixels, num_crops: int = 3, whole: bool = False) -> None:
        if crop_size < 1:
            raise ValueError(f"crop_size must be a positive number of pixels, got {crop_size}")
        if num_crops not in (1, 3):
            raise ValueError(
                f"num_crops must be 1 (centre) or 3 (along the long side), got {num_crops}"
            )
        if whole and num_crops != 1:
            raise ValueError(f"whole frames allow only one crop, got num_crops={num_crops}")
        self.crop_size, self.num_crops, self.whole = crop_size, num_crops, whole

    def __call__(self, results: PipelineResults) -> PackedSample:
        """Read ``views`` and ``positions`` of :class:`DecodeSharedFrames`.

        Returns:
            A dict with ``frames`` uint8 (F, H, W, 3), ``positions`` int64 (K, T), ``offsets`` int64
            (C, 2) (top and left of each crop), ``crop_size`` (height and width of a crop),
            ``label``, ``index`` and ``seed``.

        Raises:
            VideoDecodeError: If the frames need more memory than the reader's limit.
        """
        (view,) = results["views"]
        limits = results.get("limits", DecodeLimits())
        limits.check_held(results.get("path", "frames"), len(view), math.prod(view.shape))
        frame_size: tuple[int, int] = view.shape[1:3]
        size, offsets = frame_size, [(0, 0)]
        if not self.whole:
            size = (self.crop_size, self.crop_size)
            offsets = crop_offsets(frame_size, self.crop_size, self.num_crops)
        (frames,) = pack_views([view], [empty_batch(view.shape)])  # use shared memory
        return {
            "frames": frames,
            "positions": torch.from_numpy(results["positions"].astype(np.int64)),
            "offsets": torch.tensor(offsets, dtype=torch.int64),
            "crop_size": size,
            "label": int(results["label"]),
            "index": int(results["index"]),
            "seed": int(results["seed"]),
        }


def cut_views(video: PackedSample, first: int = 0, last: int | None = None) -> Tensor:
    """Cut views ``first`` to ``last`` (exclusive; None for all) of a packed video on the CPU.

    Returns:
        Views, uint8 (last - first, T, S, S, 3), or (last - first, T, H, W, 3) for whole frames. All
        crops of the first clip come first.
    """
    frames, (height, width) = video["frames"].numpy(), video["crop_size"]
    positions, offsets = video["positions"].tolist(), video["offsets"].tolist()
    last = len(positions) * len(offsets) if last is None else last
    views = torch.empty((last - first, len(positions[0]), height, width, 3), dtype=torch.uint8)
    for number, view in enumerate(views.numpy(), start=first):  # 7 times as fast as indexing
        clip, crop = divmod(number, len(offsets))
        top, left = offsets[crop]
        for target, index in zip(view, positions[clip], strict=True):
            target[...] = frames[index, top : top + height, left : left + width]
    return views
