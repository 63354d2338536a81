"""Registered metrics, for ``test_evaluator`` and ``val_evaluator`` in configs."""

from sce_video.evaluation.metrics.base import RowMetric
from sce_video.evaluation.metrics.feature_metrics import (
    KNN,
    ClipRetrieval,
    FewShot,
    LiDAR,
    LinearProbe,
    RankMe,
    Retrieval,
)
from sce_video.evaluation.metrics.sense_of_time import SenseOfTime
from sce_video.options.shared import PROTOCOLS as NAMES
from sce_video.registry import own_classes

_OF_NAMES = (
    ClipRetrieval,
    FewShot,
    KNN,
    LiDAR,
    LinearProbe,
    RankMe,
    Retrieval,
    SenseOfTime,
)
#: Metric class of each protocol for frozen features, by its name on the command line.
PROTOCOLS: dict[str, type[RowMetric]] = dict(zip(NAMES, _OF_NAMES, strict=True))


def protocol_class(name: str) -> type[RowMetric]:
    """Return the metric of a protocol, or the user's own metric of that name."""
    return PROTOCOLS.get(name) or own_classes("metric")[name]
