"""Throughput of the 30-view test's data pipeline on one core: ours, mmaction2's, the limit.

    python benchmarks/test_views.py --videos DIR [--json OUT] [--repacked DIR] [--seconds 120]
        [--backend av]

A sample: 10 clips of 2.56 s at equal steps, 8 frames each, short side 256, three crops of 256 along
the long side. Interleaved, on the originals and on their repacked versions:

    mmaction2          its test pipeline: DecordInit, SampleFrames (10 clips, test mode),
                       DecordDecode, Resize, ThreeCrop, FormatShape, PackActionInputs
    av, decord, ...    our test pipeline (configs/_base_/pipelines/test_8x224.py) with each backend,
                       and the 30 views cut as the test loop cuts them on a CPU (view_chunks)
    av, packed only    ours without cutting views, which a GPU would do
    limit              the frames of our sample, decoded and not converted
    limit, our reader  the same with our reader

The JSON's ``ratios`` are geometric means over the files of ratios of CPU time (``ratios_wall``:
wall time) of ``--backend`` to mmaction2 on the originals: ``original`` and ``repacked``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import side_by_side as sbs

from sce_video.datasets import run_pipeline
from sce_video.datasets.readers import AvReader
from sce_video.datasets.transforms import (
    DecodeSharedFrames,
    OpenVideo,
    PackVideo,
    ResizeShortSide,
    UniformClips,
)
from sce_video.evaluation import view_chunks

CLIP_DURATION, NUM_FRAMES, NUM_CLIPS, SIZE = 2.56, 8, 10, 256


def ours(backend: str, make_views: bool = True) -> sbs.Sample:
    """A function that makes one sample with one of our backends."""
    steps = [
        OpenVideo(backend),
        UniformClips(CLIP_DURATION, NUM_FRAMES, NUM_CLIPS),
        DecodeSharedFrames(),
        ResizeShortSide(SIZE),
        PackVideo(SIZE, num_crops=3),
    ]

    def sample(path: str, seed: int) -> None:
        results: dict[str, Any] = {"path": path, "label": -1, "index": 0, "seed": seed}
        results["rng"] = np.random.default_rng(seed)
        results = run_pipeline(steps, results)
        if make_views:
            count = 0
            for views in view_chunks(results, "cpu", 3 * NUM_CLIPS):
                assert views.shape[1:] == (NUM_FRAMES, SIZE, SIZE, 3)
                count += len(views)
            assert count == 3 * NUM_CLIPS

    return sample


def mmaction2() -> sbs.Sample:
    """The same with mmaction2's transforms; frame interval: frames of our clip divided by 8."""
    from mmaction.datasets.transforms import (
        DecordDecode,
        DecordInit,
        FormatShape,
        PackActionInputs,
        Resize,
        SampleFrames,
        ThreeCrop,
    )

    opening, decoding, resize = DecordInit(num_threads=1), DecordDecode(), Resize((-1, SIZE))
    crop, shape, pack = ThreeCrop(SIZE), FormatShape("NCTHW"), PackActionInputs()

    def sample(path: str, seed: int) -> None:
        results = opening(dict(filename=path, start_index=0, modality="RGB", label=-1))
        interval = max(1, round(CLIP_DURATION * results["avg_fps"] / NUM_FRAMES))
        frames = SampleFrames(
            NUM_FRAMES, frame_interval=interval, num_clips=NUM_CLIPS, test_mode=True
        )
        for step in (frames, decoding, resize, crop, shape, pack):
            results = step(results)
        assert results["inputs"].shape == (3 * NUM_CLIPS, 3, NUM_FRAMES, SIZE, SIZE)

    return sample


def needed(path: str, seed: int) -> np.ndarray:
    """Indices of the frames in the ten clips, ascending."""
    with AvReader(path) as reader:
        clips = UniformClips(CLIP_DURATION, NUM_FRAMES, NUM_CLIPS)({"reader": reader})["clips"]
    return np.unique(np.concatenate([clip.frames for clip in clips]))


def ratios(times: dict, backend: str, speed: str) -> dict[str, float | None]:
    """One of our backends against mmaction2 on the originals, rounded."""
    found = {
        kind: sbs.mean_ratio(times, (kind, backend), ("original", sbs.MMACTION2), speed)
        for kind in ("original", "repacked")
    }
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    args = sbs.arguments(
        "Throughput of the data pipeline of the 30-view test on one core."
    ).parse_args(argv)
    core = sbs.prepare_process()
    videos = sbs.find_videos(args.videos, args.all)
    candidates = {sbs.MMACTION2: mmaction2()}
    candidates |= {name: ours(name) for name in [*sbs.importable_backends(), "auto"]}
    candidates["av, packed only"] = ours("av", make_views=False)
    candidates |= sbs.limits(needed)
    sbs.compare(args, core, videos, candidates, ratios, (ours("av"), "views, rest"), least=3)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
