"""Classifies new videos with a finetuned classifier."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from sce_video.apis.arrays import Video
from sce_video.apis.embed import EmbedOptions, FileRows, rows_of_files, rows_of_videos
from sce_video.apis.video_classifier import VideoClassifier


def predict(
    classifier: VideoClassifier,
    videos: Video | Sequence[Video],
    options: EmbedOptions | None = None,
    *,
    fps: float | None = None,
) -> np.ndarray:
    """Class probabilities of videos: the mean of the softmax vectors over the views of each.

    Args:
        classifier: From :func:`~sce_video.apis.load_classifier`.
        videos: Paths, arrays (T, H, W, 3) uint8 RGB, or a mix; a single path or array is treated
            as a list of one.
        options: Views and workers; None for ``classifier.options``, the views of its test pipeline.
        fps: Frames per second of the arrays, see :func:`~sce_video.apis.embed`.

    Returns:
        (N, K) float32, K in the order of ``classifier.classes``; every row sums to 1.

    Raises:
        TypeError: something else than a classifier.
        ValueError, FileNotFoundError, VideoDecodeError: as :func:`~sce_video.apis.embed`.
    """
    _check_classifier(classifier)
    return rows_of_videos(classifier, videos, options or classifier.options, fps)


def predict_files(
    classifier: VideoClassifier,
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    options: EmbedOptions | None = None,
) -> FileRows:
    """Class probabilities of many files; files that cannot be decoded are listed, not raised.

    Args:
        classifier: From :func:`~sce_video.apis.load_classifier`.
        paths: N files, or one.
        options: Views and workers; None for ``classifier.options``, the views of its test pipeline.

    Returns:
        ``probabilities`` (M, K), ``paths`` and ``indices`` of the M files that could be decoded,
        and ``failures``, (path, reason) of the other N - M.
    """
    _check_classifier(classifier)
    return rows_of_files(classifier, paths, options or classifier.options)


def _check_classifier(classifier: object) -> None:
    if not isinstance(classifier, VideoClassifier):
        given = repr(classifier) if isinstance(classifier, str) else type(classifier).__name__
        raise TypeError(f"a classifier is wanted, from load_classifier(CHECKPOINT), got {given}")


def top_classes(
    probabilities: np.ndarray, classes: Sequence[str], k: int
) -> list[tuple[str, float]]:
    """Name and probability of the k most probable classes; of equal ones the first comes first.

    Args:
        probabilities: (K,).
        classes: K names.
        k: At least 1; all classes if there are fewer.
    """
    if k < 1:
        raise ValueError(f"the number of classes to name must be at least 1, got {k}")
    order = np.argsort(-probabilities, kind="stable")[:k]
    return [(classes[i], float(probabilities[i])) for i in order]
