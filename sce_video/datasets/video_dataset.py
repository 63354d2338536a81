"""The dataset of videos: a list or a folder, and a pipeline that makes samples of them."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import av
import av.logging
import cv2
import numpy as np
from torch.utils.data import Dataset, get_worker_info

from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.datasets.loading.batches import Shapes, SharedBatchBuffer, shapes_of
from sce_video.datasets.loading.failures import CurrentFiles
from sce_video.datasets.loading.time_limit import LimitExceededError, TimeLimitedCaller
from sce_video.datasets.pipeline import (
    PackedSample,
    PipelineResults,
    Steps,
    run_pipeline,
)
from sce_video.datasets.readers.base import (
    FrameCountError,
    TooManyBadFilesError,
    VideoDecodeError,
    VideoTimeoutError,
)
from sce_video.datasets.sources import root_of_files, scan_folder
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.datasets.video_list import (
    VIDEO_EXTENSIONS,
    VideoList,
    line_number,
    read_annotation_list,
    subset_indices,
)
from sce_video.registry import DATASETS, TRANSFORMS
from sce_video.utils.storage import is_url
from sce_video.utils.stored_arguments import Word, Words

_MASK64 = 2**64 - 1


class SampleRequest(NamedTuple):
    """Request of a sampler for one sample of a dataset."""

    #: Index of the sample in the dataset.
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    #: 63-bit number from which all random decisions for the sample follow.
    seed: int

    @classmethod
    def of(cls, request: int | SampleRequest) -> SampleRequest:
        """Return a request unchanged. A plain index gets a seed that is derived from it."""
        if isinstance(request, SampleRequest):
            return request
        return cls(int(request), mix_seed(0, 0, int(request)))


def mix_seed(*parts: int) -> int:
    """Mix integers to a 63-bit seed, which is the same on every machine and in every run."""
    state = 0
    for part in parts:  # SplitMix64 (Steele et al., 2014)
        state = ((state ^ (part & _MASK64)) + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state >> 1


@dataclass(frozen=True)
class SampleOrigin:
    """Clips and crops that were drawn for the V views of a sample.

    Attributes:
        clips: V clips; empty for images.
        timestamps: (F,) timestamps of the video's frames in seconds; empty for images.
        duration: Duration of the video in seconds; 0 for images.
        crops: Share of the frame's area that each view shows, 0 to 1; empty if it is not known.
    """

    clips: list[ClipIndices] = field(default_factory=list)
    timestamps: np.ndarray = field(default_factory=lambda: np.zeros(0))
    duration: float = 0.0
    crops: list[float] = field(default_factory=list)


_ON_ERROR = ("replace", "raise", "skip")
_GRACE = 1.0  # extra seconds, so that decoders, which check the deadline, raise first


@DATASETS.register_module()
class VideoDataset(Dataset):
    """Videos from an annotation list or from a folder.

    A sample depends only on its :class:`SampleRequest`, and not on the worker that makes it or on
    earlier samples. A file that cannot be decoded, or that takes longer than ``timeout``, is a *bad
    file*, which this copy of the dataset (one per worker) does not open again.

    Args:
        data_root: Folder that the paths of the list are relative to, or the folder to search.
        ann_file: Annotation list, see :func:`read_annotation_list`. It is a URL, or a path that is
            first searched as given and then in ``data_root``. None searches ``data_root``, see
            :func:`scan_folder`.
        pipeline: Transforms, built or as configs, see :func:`~sce_video.datasets.run_pipeline`.
            They get ``path, label, index, seed, rng`` (and ``deadline``, ``correction`` to open,
            ``targets`` to pack) and return the sample.
        on_error: Handling of bad files. ``replace`` uses another sample, chosen by the request's
            seed, up to 10 times. ``index`` and ``label`` then belong to the replacement. ``raise``
            raises :class:`VideoDecodeError`, for testing. ``skip`` returns ``inputs=None``, which
            the collate function drops.
        timeout: Time limit for a sample in seconds. None sets no limit and starts no helper thread.
        extensions: Extensions of the files when a folder is searched. None means video extensions.
            ``"*"`` also accepts files with other extensions if they contain a video.
        class_file: File with the class names of a list, one per line, beginning with label 0. It is
            searched like the list. The classes of a folder are named after its sub-folders.
        subset: Part of a folder or a table to use: ``dict(part="held_out", held_out=64, seed=0)``,
            see :func:`~sce_video.datasets.video_list.subset_indices`.

    Raises:
        ValueError: If there is nothing to read, a label has no name, or an option is wrong.
    """

    kind = "video"  # kind of file, used in messages
    extensions: Sequence[str] = VIDEO_EXTENSIONS
    max_tries = 10  # maximum number of replacements for a bad file

    def __init__(
        self,
        data_root: str = "",
        ann_file: str | None = None,
        pipeline: Steps = (),
        on_error: Word = "replace",
        timeout: float | None = 60.0,
        extensions: Sequence[str] | None = None,
        class_file: str | None = None,
        subset: Words | None = None,
    ) -> None:
        if on_error not in _ON_ERROR:
            raise ValueError(f"on_error must be one of {', '.join(_ON_ERROR)}, got {on_error!r}")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout}")
        self.data_root = os.path.expanduser(data_root)
        self.ann_file = None if ann_file is None else self._find_list(ann_file)
        self.class_file = None if class_file is None else self._find_list(class_file)
        self.extensions = self.extensions if extensions is None else extensions
        self.videos = self.list_videos()
        if subset is not None:
            if ann_file is not None:  # a list must stay whole: messages cite its line numbers
                raise ValueError(f"subset divides a folder or a table, not the list {ann_file!r}")
            self.select(subset_indices(self.videos.labels, **subset))
        self.pipeline = [TRANSFORMS.build(t) if isinstance(t, dict) else t for t in pipeline]
        # The number of views is set by the step that samples clips or loads an image.
        found = (i for i, t in enumerate(self.pipeline) if {"num_views", "num_clips"} & {*dir(t)})
        self._sampling = next(found, None)
        self._sampling_step = None if self._sampling is None else self.pipeline[self._sampling]
        self.on_error, self.timeout = on_error, timeout
        self.current_files = CurrentFiles()
        self._caller = TimeLimitedCaller()
        self._reading = ""
        self._known_bad: dict[str, str] = {}
        self._left_out: frozenset[int] = frozenset()
        self._view_shapes: Shapes | None = None
        self._batch_buffer = SharedBatchBuffer()
        self._prepared_pid = 0

    def _find_list(self, ann_file: str) -> str:
        if is_url(ann_file):
            return ann_file
        ann_file = os.path.expanduser(ann_file)
        in_root = os.path.join(self.data_root, ann_file)
        return in_root if not os.path.isfile(ann_file) and os.path.isfile(in_root) else ann_file

    def list_videos(self) -> VideoList:
        if is_url(self.data_root):
            raise ValueError(
                f"data_root={self.data_root!r}: {self.kind}s must be in a local folder. Only "
                "lists, checkpoints, results and Lance tables can be in an object store"
            )
        if self.ann_file is None:
            if self.class_file is not None:
                raise ValueError(
                    f"class_file={self.class_file!r} has no effect without an ann_file, because "
                    f"the classes of the folder {self.data_root!r} are named after its "
                    "sub-folders. Remove it"
                )
            return scan_folder(self.data_root, self.extensions, self.kind)
        videos = read_annotation_list(self.ann_file, self.kind, self.class_file)
        right = f"is data_root={self.data_root!r} right?"
        root_of_files(self.ann_file, [self.data_root], videos, right, self.kind)
        return videos

    def select(self, indices: np.ndarray) -> None:
        self.videos = self.videos.select(indices)

    def __len__(self) -> int:
        return len(self.videos)

    @property
    def labels(self) -> np.ndarray:
        """Return the labels, (N,) int64; -1 for a video without a label."""
        return self.videos.labels

    @property
    def metainfo(self) -> dict[str, Any]:
        """Return ``classes``, the class names from sub-folders or ``class_file``."""
        return {"classes": self.videos.classes}

    @property
    def num_views(self) -> int | None:
        """Return the number of views V that a step of the pipeline states; None if none does."""
        step = self._sampling_step
        return getattr(step, "num_views", None) or getattr(step, "num_clips", None)

    @property
    def num_local_views(self) -> int:
        """Return the number L of local views. They are the last views, and shorter or smaller."""
        return getattr(self._sampling_step, "num_local_views", 0)

    def path(self, index: int) -> str:
        """Return the path of a video, including ``data_root``."""
        return os.path.join(self.data_root, self.videos.path(index))

    def describe(self, index: int) -> str:
        """Return the list, line and path of a video for messages, or only its path."""
        path = self.videos.path(index)
        if self.ann_file is None:
            return f"{self.path(index)!r}"
        return f"{self.ann_file}, line {line_number(self.ann_file, index)}: {path!r}"

    def origin(self, request: SampleRequest) -> SampleOrigin:
        """Make a sample again, and return the clips and crops of its views.

        VideoDecodeError is raised for a bad file, which is not replaced.
        """
        origin = SampleOrigin()

        def note(results: PipelineResults) -> PipelineResults:
            """Record clips after they were sampled, and views before they are packed."""
            nonlocal origin
            if "clips" in results:  # images have no clips
                origin = replace(origin, clips=list(results["clips"]))
                if "reader" in results:
                    reader = results["reader"]
                    origin = replace(origin, timestamps=reader.timestamps, duration=reader.duration)
            views = results.get("views", [])
            crops = [view.shown_area for view in views if isinstance(view, LazyView)]
            origin = replace(origin, crops=crops if len(crops) == len(views) else [])
            return results

        behind, steps = 1 + (self._sampling or 0), self.pipeline
        watched = copy.copy(self)
        watched.pipeline = [*steps[:behind], note, *steps[behind:-1], note, *steps[-1:]]
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        given: PipelineResults = {"path": self.path(request.index), "deadline": deadline}
        watched._run_pipeline(*request, given)
        return origin

    def __getitem__(self, request: int | SampleRequest) -> PackedSample:
        """Return the sample of a request, or of an index, from which a seed is derived.

        It is the output of the pipeline with ``failures``, the path and error of each bad file.

        Raises:
            VideoDecodeError: If the file is bad and ``on_error`` is ``raise``.
            TooManyBadFilesError: If ``max_tries`` replacements are also bad.
        """
        return self._make_samples([request])[0]

    def __getitems__(self, requests: Sequence[int | SampleRequest]) -> list[PackedSample]:
        """Return the samples of one batch; called by ``DataLoader``."""
        # If the views have the same shapes as in the previous batch, write them directly to shared
        # memory, so that collating copies nothing.
        self._batch_buffer = SharedBatchBuffer(len(requests), self._view_shapes)
        try:
            return self._make_samples(requests)
        finally:
            self._batch_buffer = SharedBatchBuffer()

    def _make_samples(self, requests: Sequence[int | SampleRequest]) -> list[PackedSample]:
        """Make the samples of the requests, in the helper thread if there is a time limit."""
        self._prepare_process()
        if self.timeout is None:
            return [self._make_sample(SampleRequest.of(request)) for request in requests]
        samples: list[PackedSample] = []

        def work() -> None:
            for request in requests[len(samples) :]:
                self._caller.restart(math.inf)  # the limit starts only when a file is read
                samples.append(self._make_sample(SampleRequest.of(request)))

        while len(samples) < len(requests):
            try:
                self._caller.call(work, self.timeout + _GRACE)
            except LimitExceededError:
                # Mark the file as bad before its request is repeated.
                self._known_bad[self._reading] = f"timed out after {self.timeout:g} s"
                self._batch_buffer.abandon()
        return samples

    def _make_sample(self, request: SampleRequest) -> PackedSample:
        """Return the sample of a request, or its replacement."""
        failures: list[tuple[str, str]] = []
        if request.index in self._left_out:
            return {"inputs": None, "failures": failures}
        index = request.index
        for attempt in range(1, self.max_tries + 2):
            try:
                sample = self._sample(index, request.seed)
            except VideoDecodeError as error:
                failures.append((error.path, error.reason))
                if self.on_error == "raise":
                    reason = (
                        f"{error.reason}. Repair or remove the file (sce-video verify lists all), "
                        f"or set on_error='skip' or 'replace' (by another {self.kind}) in a config"
                    )
                    raise VideoDecodeError(error.path, reason, error.permanent) from error
                if self.on_error == "skip":
                    return {"inputs": None, "failures": failures}
                index = mix_seed(request.seed, attempt) % len(self)
            else:
                self._batch_buffer.fill()
                if "inputs" in sample and sample["inputs"] is not None:
                    self._view_shapes = shapes_of(sample)
                return {**sample, "failures": failures}
        listed = "\n".join(f"  {path}: {reason}" for path, reason in failures)
        raise TooManyBadFilesError(
            f"sample {request.index} and {self.max_tries} replacements cannot be decoded:\n{listed}"
        )

    def mark_bad(self, path: str, reason: str) -> None:
        """Mark the file at a path (see :meth:`path`) as bad, also for workers that start later."""
        self._known_bad[path] = reason

    def leave_out(self, indices: Iterable[int]) -> None:
        """Make workers that start later return empty samples for these videos."""
        self._left_out = frozenset(indices)

    def _sample(self, index: int, seed: int) -> PackedSample:
        """Return the sample of this video; VideoDecodeError if it is a bad file."""
        path = self.path(index)
        if path in self._known_bad:
            raise VideoDecodeError(path, self._known_bad[path])
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        given: PipelineResults = {
            "path": path,
            "deadline": deadline,
            "targets": self._batch_buffer.next_slot(),
        }
        try:
            if self.timeout is not None:  # a thread that exceeded the limit gets AbandonedError
                self._reading = path
                self._caller.restart(self.timeout + _GRACE)
            try:
                with self.current_files.reading(path):
                    return self._run_pipeline(index, seed, given)
            finally:  # runs first, so that such a thread cannot mark the file as bad
                if self.timeout is not None:
                    self._caller.restart(math.inf)
        except (TimeoutError, VideoTimeoutError):
            self._known_bad[path] = reason = f"timed out after {self.timeout:g} s"
            raise VideoDecodeError(path, reason) from None
        except VideoDecodeError as error:
            if error.permanent:
                self._known_bad[path] = error.reason
            raise

    def _run_pipeline(self, index: int, seed: int, given: PipelineResults) -> PackedSample:
        """Make the sample of a video. If listed frames do not exist, use only existing frames."""
        try:
            return run_pipeline(self.pipeline, {**self.inputs(index, seed), **given})
        except FrameCountError as error:
            given = {**given, "correction": error.correction}
        try:
            return run_pipeline(self.pipeline, {**self.inputs(index, seed), **given})
        except FrameCountError as error:
            raise VideoDecodeError(given["path"], f"cannot be decoded: {error}") from error

    def inputs(self, index: int, seed: int) -> PipelineResults:
        """Return the first transform's input, except path, deadline, targets and correction."""
        return {
            "label": int(self.videos.labels[index]),
            "index": index,
            "seed": seed,
            "rng": np.random.default_rng(seed),
        }

    def _prepare_process(self) -> None:
        """Silence the libraries once per process. Their errors are reported as bad files."""
        if self._prepared_pid != os.getpid():
            self._prepared_pid = os.getpid()
            av.logging.set_libav_level(av.logging.FATAL)
            cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
            if get_worker_info() is not None:  # loader workers must not start OpenCV threads
                cv2.setNumThreads(0)
