"""Registered metrics, named in configs by ``test_evaluator`` and ``val_evaluator``."""

from sce_video.evaluation.metrics.base import RowMetric, compute_metrics, for_each_group
from sce_video.evaluation.metrics.classification import AVAMeanAP, MeanClassAccuracy, TopKAccuracy
from sce_video.evaluation.metrics.features import (
    KNN,
    FeatureStatistics,
    FewShot,
    LinearProbe,
    Retrieval,
)
from sce_video.evaluation.metrics.sense_of_time import SenseOfTime

#: Protocols of frozen features by their names on the command line.
PROTOCOLS: dict[str, type[RowMetric]] = {
    "few_shot": FewShot,
    "knn": KNN,
    "linear": LinearProbe,
    "retrieval": Retrieval,
    "time": SenseOfTime,
}

__all__ = [
    "KNN",
    "PROTOCOLS",
    "AVAMeanAP",
    "FeatureStatistics",
    "FewShot",
    "LinearProbe",
    "MeanClassAccuracy",
    "Retrieval",
    "RowMetric",
    "SenseOfTime",
    "TopKAccuracy",
    "compute_metrics",
    "for_each_group",
]
