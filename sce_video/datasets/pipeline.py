"""The data pipeline: its steps, and the values that they pass on, from a path to a packed sample.

The values are in a dict, as in OpenMMLab, so that your own steps can add keys. The types below
describe the keys of the steps in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from sce_video.datasets.clip_sampling import ClipIndices
    from sce_video.datasets.readers.base import DecodedFrames, DecodeLimits, VideoReader
    from sce_video.datasets.transforms.lazy_view import LazyView


class PipelineResults(TypedDict, total=False):
    """Values of one sample between two steps. The dataset sets the first group of keys."""

    path: str
    #: Class number; -1 for an unlabelled sample.
    label: int
    #: Index in the dataset.
    index: int
    seed: int
    #: Generator of all random numbers, which transforms must use exclusively.
    rng: np.random.Generator
    #: Value of ``time.monotonic()`` after which reading raises an error; None for no limit.
    deadline: float | None
    #: Indices of the frames that exist (see ``FrameCountError``). The first attempt has none.
    correction: np.ndarray | None
    #: Slot of a shared batch buffer, a uint8 tensor per view. None means to pack into new tensors.
    targets: Sequence[Tensor] | None
    #: Function that opens ``path`` with a reader's options, for example for a table row.
    open: Callable[..., VideoReader]
    #: List to which the reader is appended, so that the caller can query it later.
    opened: list[VideoReader]
    #: Stack that closes opened files after the last step.
    exit_stack: ExitStack
    #: Image from a dataset in memory, uint8 (H, W, 3).
    image: np.ndarray | DecodedFrames
    #: Time of an AVA key frame in the film, in seconds.
    timestamp: float
    #: Person boxes of a key frame, (n, 4) float32, first in [0, 1] and later in pixels.
    boxes: np.ndarray
    #: Actions of each person, (n, 80) float32, where 1 means that the person performs the action.
    actions: np.ndarray

    reader: VideoReader
    limits: DecodeLimits
    #: One clip per view.
    clips: list[ClipIndices]
    #: Number of the chosen clip, which identifies its stored features.
    clip: int
    #: Number L of local views, which come after the global views.
    num_local_views: int
    #: V views, uint8 (T, H, W, 3). Their pixels may not have been computed yet.
    views: list[np.ndarray | LazyView]
    #: Place of each clip's frames in the only view, (K, T) int64.
    positions: np.ndarray
    #: Numbers of RGB-difference clips, of clips with repeated frames, and of colour clips.
    differences: tuple[int, int, int]
    #: Whether the packed pixels are mirrored.
    flipped: bool


class PackedSample(TypedDict, total=False):
    """A sample as the last step packs it and the dataset returns it."""

    #: V uint8 tensors (T, H, W, 3), or None for a bad file that was skipped.
    inputs: list[Tensor] | None
    label: int
    index: int
    seed: int
    clip: int
    differences: tuple[int, int, int]
    #: Person boxes in pixels, (n, 4) float32.
    boxes: Tensor
    #: Actions of each person, (n, 80) float32.
    actions: Tensor
    #: Frames that the views share, uint8 (F, H, W, 3). ``PackVideo`` returns them, not ``inputs``.
    frames: Tensor
    #: Index of each clip's frames, (K, T) int64.
    positions: Tensor
    #: Top and left of each crop, (C, 2) int64.
    offsets: Tensor
    #: Height and width of each crop.
    crop_size: tuple[int, int]
    #: Path and error of each bad file that was tried for this sample.
    failures: list[tuple[str, str]]
    #: Number of frames in which the decoder concealed errors. Only embedding jobs provide it.
    damaged: int
    #: Duration of the video in seconds. Only embedding jobs provide it.
    duration: float


#: Pipeline step. It is called with the previous step's results, and the last step returns the
#: packed sample.
Transform = Callable[[PipelineResults], Any]

#: Steps of a pipeline, either built or as configs.
Steps = Sequence[Transform | dict[str, Any]]


def run_pipeline(pipeline: Iterable[Transform], results: PipelineResults) -> Any:
    """Apply transforms in order to a copy of ``results``, and return the result of the last one.

    Files that a transform enters into ``results["exit_stack"]`` are closed after the last
    transform, or if a transform raises an error.
    """
    with ExitStack() as stack:
        found: Any = {**results, "exit_stack": stack}
        for transform in pipeline:
            found = transform(found)
        found.pop("exit_stack", None)  # a transform may have built a new dict without it
        return found
