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
from sce_video.datasets.loading.time_limit import LimitExceededError, TimeLimitedCaller
from sce_video.datasets.loading.worker_crashes import CurrentFiles
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
from sce_video.datasets.sources import advice_on_path, scan_folder, video_exists
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

    #: Index in the dataset.
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    #: 63-bit number that determines all random decisions of the sample.
    seed: int

    @classmethod
    def of(cls, request: int | SampleRequest) -> SampleRequest:
        """Return the request itself. For a plain index, derive the seed from it."""
        if isinstance(request, SampleRequest):
            return request
        return cls(int(request), mix_seed(0, 0, int(request)))


def mix_seed(*parts: int) -> int:
    """Return a well-mixed 63-bit seed from integers; the same on every machine and in every run."""
    state = 0
    for part in parts:  # the generator SplitMix64 (Steele et al., 2014)
        state = ((state ^ (part & _MASK64)) + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state >> 1


@dataclass(frozen=True)
class SampleOrigin:
    """Clips and crops that were drawn for a sample's V views before its pixels were changed."""

    #: V clips, and the (F,) seconds of the frames that they index; empty for images.
    clips: list[ClipIndices] = field(default_factory=list)
    timestamps: np.ndarray = field(default_factory=lambda: np.zeros(0))
    #: Seconds of the video; 0 for images.
    duration: float = 0.0
    #: Share of the frame's area that each view shows, 0 to 1; empty if it is not known.
    crops: list[float] = field(default_factory=list)


_ON_ERROR = ("replace", "raise", "skip")
_NUM_CHECKED = 20  # number of list entries whose files must exist when the dataset is built
_GRACE = 1.0  # seconds after the deadline, so that decoders, which check it themselves, raise first


@DATASETS.register_module()
class VideoDataset(Dataset):
    """Videos from an annotation list or from a folder.

    A sample depends only on its :class:`SampleRequest`, and not on the worker that makes it or on
    the samples before it. (Only whether a time limit is exceeded depends on the machine.) A file
    that cannot be decoded, or that takes longer than ``timeout``, is a *bad file*, which this copy
    of the dataset (one per worker) does not open again.

    Args:
        data_root: Folder that the paths of the list are relative to, or the folder to search.
        ann_file: Annotation list, see :func:`read_annotation_list`. It is a URL, or a path that is
            searched as given and then in ``data_root``. None searches ``data_root``, see
            :func:`scan_folder`.
        pipeline: Transforms, built or as configs, see :func:`~sce_video.datasets.run_pipeline`.
            They get ``path, label, index, seed, rng`` (and ``deadline``, ``correction`` to open,
            ``targets`` to pack) and return the sample.
        on_error: Handling of a bad file's sample. ``replace`` uses another sample, chosen by the
            request's seed, up to 10 times. Its ``index`` and ``label`` belong to the replacement.
            ``raise`` raises :class:`VideoDecodeError`, for testing. ``skip`` returns
            ``inputs=None``, which the collate function drops.
        timeout: Seconds that a sample may take. None sets no limit and starts no helper thread.
        extensions: Extensions of the files when a folder is searched. None means video extensions.
            ``"*"`` also accepts files of other extensions if they contain a video.
        class_file: Names of a list's labels, one per line from label 0. It is searched like the
            list. The labels of a folder are named by its sub-folders.
        subset: Part of a folder or a table to use: ``dict(part="held_out", held_out=64, seed=0)``,
            see :func:`~sce_video.datasets.video_list.subset_indices`.

    Raises:
        ValueError: If there is nothing to read, a label has no name, or an option is wrong.
    """

    kind = "video"  # kind of file, for messages
    extensions: Sequence[str] = VIDEO_EXTENSIONS
    max_tries = 10  # maximum number of replacements of a bad file before an error is raised

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
            raise ValueError(f"timeout must be positive seconds or None, got {timeout}")
        self.data_root = os.path.expanduser(data_root)
        self.ann_file = None if ann_file is None else self._find_list(ann_file)
        self.class_file = None if class_file is None else self._find_list(class_file)
        self.extensions = self.extensions if extensions is None else extensions
        self.videos = self.list_videos()
        if subset is not None:
            if ann_file is not None:  # messages name the lines of a list
                raise ValueError(f"subset divides a folder or a table, not the list {ann_file!r}")
            self.select(subset_indices(self.videos.labels, **subset))
        self.pipeline = [TRANSFORMS.build(t) if isinstance(t, dict) else t for t in pipeline]
        # The step that decides the number of views, because it samples the clips or loads an image.
        found = (i for i, t in enumerate(self.pipeline) if {"num_views", "num_clips"} & {*dir(t)})
        self._sampling = next(found, None)
        self._sampling_step = None if self._sampling is None else self.pipeline[self._sampling]
        self.on_error, self.timeout = on_error, timeout
        self.current_files = CurrentFiles()
        self._caller = TimeLimitedCaller()
        self._reading = -1
        self._known_bad: dict[int, str] = {}
        self._left_out: frozenset[int] = frozenset()
        self._bad_paths: dict[str, str] = {}
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
        numbers = range(len(videos))[:_NUM_CHECKED]
        first = [os.path.join(self.data_root, videos.path(i)) for i in numbers]
        right = f"is data_root={self.data_root!r} right?"
        if not any(map(video_exists, first)):
            raise ValueError(
                f"none of the first {len(first)} {self.kind}s of {self.ann_file!r} exist, for "
                f"example {first[0]!r}: {advice_on_path(videos.path(0), right)}"
            )
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
        """Return ``classes``: label names from sub-folders or ``class_file``, if there are any."""
        return {"classes": self.videos.classes}

    @property
    def num_views(self) -> int | None:
        """Return V, the number of views that a step of the pipeline states; None if none does."""
        step = self._sampling_step
        return getattr(step, "num_views", None) or getattr(step, "num_clips", None)

    @property
    def num_local_views(self) -> int:
        """Return L: how many views, the last ones, are local, so shorter or smaller than others."""
        return getattr(self._sampling_step, "num_local_views", 0)

    def path(self, index: int) -> str:
        """Return the path of a video, with ``data_root``."""
        return os.path.join(self.data_root, self.videos.path(index))

    def describe(self, index: int) -> str:
        """Return list, line and path of a video, or only its path, for messages."""
        path = self.videos.path(index)
        if self.ann_file is None:
            return f"{self.path(index)!r}"
        return f"{self.ann_file}, line {line_number(self.ann_file, index)}: {path!r}"

    def origin(self, request: SampleRequest) -> SampleOrigin:
        """Return the clips and crops of the views of a sample, which is made once more.

        VideoDecodeError for a bad file, which is not replaced.
        """
        origin = SampleOrigin()

        def note(results: PipelineResults) -> PipelineResults:
            """Record clips after sampling and views before the last step, unchanged."""
            nonlocal origin
            if results.get("clips"):  # if frames repeat, decoding changes them
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
        """Return the sample of a request, or of an index, from which a seed is then derived.

        It is the output of the pipeline with ``failures``, a list of (path, error) of bad files.
        VideoDecodeError is raised with ``on_error="raise"``, and TooManyBadFilesError after
        ``max_tries``.
        """
        return self._make_samples([request])[0]

    def __getitems__(self, requests: Sequence[int | SampleRequest]) -> list[PackedSample]:
        """Return the samples of one batch; called by ``DataLoader``."""
        # If the views have the same shapes as in the batch before, they are written to shared
        # memory, and collating copies nothing.
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
                self._caller.restart(math.inf)  # the limit starts when a file is read
                samples.append(self._make_sample(SampleRequest.of(request)))

        while len(samples) < len(requests):
            try:
                self._caller.call(work, self.timeout + _GRACE)
            except LimitExceededError:
                # Its request is repeated. By then, the file is known to be bad.
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
                        f"or set on_error='skip', or 'replace' (another {self.kind}), in a config"
                    )
                    raise VideoDecodeError(error.path, reason, error.permanent) from error
                if self.on_error == "skip":
                    return {"inputs": None, "failures": failures}
                index = mix_seed(request.seed, attempt) % len(self)
            else:
                self._batch_buffer.fill()
                if sample.get("inputs") is not None:
                    self._view_shapes = shapes_of(sample)
                return {**sample, "failures": failures}
        listed = "\n".join(f"  {path}: {reason}" for path, reason in failures)
        raise TooManyBadFilesError(
            f"sample {request.index} and {self.max_tries} replacements cannot be decoded:\n{listed}"
        )

    def mark_bad(self, path: str, reason: str) -> None:
        """Mark the file at a path (see :meth:`path`) as bad, also for workers that start later."""
        self._bad_paths[path] = reason

    def leave_out(self, indices: Iterable[int]) -> None:
        """Make workers that start later return empty samples for these videos."""
        self._left_out = frozenset(indices)

    def _sample(self, index: int, seed: int) -> PackedSample:
        """Return the sample of this video; VideoDecodeError if it is a bad file."""
        path = self.path(index)
        known = self._known_bad.get(index) or self._bad_paths.get(path)
        if known is not None:
            raise VideoDecodeError(path, known)
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        given: PipelineResults = {
            "path": path,
            "deadline": deadline,
            "targets": self._batch_buffer.next_slot(),
        }
        try:
            if self.timeout is not None:  # in a thread that exceeded it before, AbandonedError
                self._reading = index
                self._caller.restart(self.timeout + _GRACE)
            try:
                with self.current_files.reading(path):
                    return self._run_pipeline(index, seed, given)
            finally:  # checked first, because a thread that exceeded its limit must note no error
                if self.timeout is not None:
                    self._caller.restart(math.inf)
        except (TimeoutError, VideoTimeoutError):
            self._known_bad[index] = reason = f"timed out after {self.timeout:g} s"
            raise VideoDecodeError(path, reason) from None
        except VideoDecodeError as error:
            if error.permanent:
                self._known_bad[index] = error.reason
            raise

    def _run_pipeline(self, index: int, seed: int, given: PipelineResults) -> PackedSample:
        """Make the sample of one video, from existing frames only if the container lists others."""
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
        """Silence the libraries, once per process. Their errors are reported as bad files."""
        if self._prepared_pid != os.getpid():
            self._prepared_pid = os.getpid()
            av.logging.set_libav_level(av.logging.FATAL)
            cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
            if get_worker_info() is not None:  # OpenCV must not start threads of its own
                cv2.setNumThreads(0)
