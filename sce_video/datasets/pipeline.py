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
    #: -1 for none.
    label: int
    #: Index in the dataset.
    index: int
    seed: int
    #: The only source of random numbers.
    rng: np.random.Generator
    #: Value of ``time.monotonic()`` after which reading raises; None for no limit.
    deadline: float | None
    #: Indices of the frames that exist (see ``FrameCountError``); None at first.
    correction: np.ndarray | None
    #: Slot of a shared batch buffer, a uint8 tensor per view; None to pack into new tensors.
    targets: Sequence[Tensor] | None
    #: Function that opens ``path`` with the options of a reader, for example for a table row.
    open: Callable[..., VideoReader]
    #: List to which the reader is appended, for a caller that queries it later.
    opened: list[VideoReader]
    #: Stack that closes the opened files after the last step.
    exit_stack: ExitStack
    #: Image of a dataset in memory, uint8 (H, W, 3).
    image: np.ndarray | DecodedFrames
    #: Time of an AVA key frame in its film, in seconds.
    timestamp: float
    #: (n, 4) float32, person boxes of a key frame, first in [0, 1] and later in pixels.
    boxes: np.ndarray
    #: (n, 80) float32, the actions of each person, 0 or 1.
    actions: np.ndarray

    reader: VideoReader
    limits: DecodeLimits
    #: A clip per view.
    clips: list[ClipIndices]
    #: Number of the chosen clip, which identifies its stored features.
    clip: int
    #: Number L of local views, which are the last views.
    num_local_views: int
    #: V views, uint8 (T, H, W, 3), whose pixels may not be computed yet.
    views: list[np.ndarray | LazyView]
    #: (K, T) int64, place of each clip's frames in the only view.
    positions: np.ndarray
    #: Number of RGB-difference clips, of clips with repeated frames, and of colour clips.
    differences: tuple[int, int, int]
    #: Whether the packed pixels are mirrored.
    flipped: bool


class PackedSample(TypedDict, total=False):
    """A sample as the last step packs it and the dataset returns it."""

    #: V uint8 tensors (T, H, W, 3); None for a bad file that was skipped.
    inputs: list[Tensor] | None
    label: int
    index: int
    seed: int
    clip: int
    differences: tuple[int, int, int]
    #: (n, 4) float32, pixels.
    boxes: Tensor
    #: (n, 80) float32.
    actions: Tensor
    #: uint8 (F, H, W, 3), frames that the views share. ``PackVideo`` returns them, not ``inputs``.
    frames: Tensor
    #: (K, T) int64, index of each clip's frames.
    positions: Tensor
    #: (C, 2) int64, top and left of every crop.
    offsets: Tensor
    #: Height and width of a crop.
    crop_size: tuple[int, int]
    #: (path, error) of the bad files that were tried for this sample.
    failures: list[tuple[str, str]]
    #: Number of frames in which the decoder concealed errors, if a job requests it.
    damaged: int
    #: Duration of the video in seconds, if a job requests it.
    duration: float


#: Pipeline step, called with the previous step's results. The last step returns the packed sample.
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
        found.pop("exit_stack", None)  # missing if a transform has built a new dict
        return found
