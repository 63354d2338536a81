"""Registered metrics, named in configs by ``test_evaluator`` and ``val_evaluator``."""

from sce_video.evaluation.metrics.base import RowMetric
from sce_video.evaluation.metrics.classification import AVAMeanAP  # noqa: F401  registered
from sce_video.evaluation.metrics.features import KNN, FewShot, LinearProbe, Retrieval
from sce_video.evaluation.metrics.sense_of_time import SenseOfTime

#: Protocols of frozen features by their names on the command line.
PROTOCOLS: dict[str, type[RowMetric]] = {
    "few_shot": FewShot,
    "knn": KNN,
    "linear": LinearProbe,
    "retrieval": Retrieval,
    "time": SenseOfTime,
}
