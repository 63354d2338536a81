"""Registered metrics, named in configs by ``test_evaluator`` and ``val_evaluator``."""

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

#: Protocols of frozen features by their names on the command line.
PROTOCOLS: dict[str, type[RowMetric]] = {
    "clip_retrieval": ClipRetrieval,
    "few_shot": FewShot,
    "knn": KNN,
    "lidar": LiDAR,
    "linear": LinearProbe,
    "rankme": RankMe,
    "retrieval": Retrieval,
    "time": SenseOfTime,
}
