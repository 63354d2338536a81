"""Evaluation: rows of a data set, metrics, and the loops and the hook that compute them."""

from typing import TYPE_CHECKING

from sce_video.utils.imports import lazy_names

if TYPE_CHECKING:
    from sce_video.evaluation.extraction import FeatureExtractionLoop
    from sce_video.evaluation.features import extract_features, load_features, save_features
    from sce_video.evaluation.functional.linear_probe import fit_linear_probe
    from sce_video.evaluation.functional.neighbours import knn_scores, nearest_neighbours
    from sce_video.evaluation.functional.statistics import (
        group_ids,
        mean_class_accuracy,
        top_k_accuracy,
    )
    from sce_video.evaluation.loop import MultiViewTestLoop, MultiViewValLoop
    from sce_video.evaluation.metrics import PROTOCOLS
    from sce_video.evaluation.metrics.base import RowMetric, compute_metrics, for_each_group
    from sce_video.evaluation.metrics.classification import (
        AVAMeanAP,
        MeanClassAccuracy,
        TopKAccuracy,
    )
    from sce_video.evaluation.metrics.features import (
        KNN,
        ClipRetrieval,
        FeatureStatistics,
        FewShot,
        LiDAR,
        LinearProbe,
        RankMe,
        Retrieval,
        retrieve,
    )
    from sce_video.evaluation.metrics.sense_of_time import SenseOfTime
    from sce_video.evaluation.multi_view import central_view, view_chunks
    from sce_video.evaluation.online_evaluation_hook import OnlineEvaluationHook
    from sce_video.evaluation.rows import Rows, collect_rows
    from sce_video.evaluation.scores import fuse_scores, load_scores, save_scores

__all__ = [
    "KNN",
    "PROTOCOLS",
    "AVAMeanAP",
    "ClipRetrieval",
    "FeatureExtractionLoop",
    "FeatureStatistics",
    "FewShot",
    "LiDAR",
    "LinearProbe",
    "MeanClassAccuracy",
    "MultiViewTestLoop",
    "MultiViewValLoop",
    "OnlineEvaluationHook",
    "RankMe",
    "Retrieval",
    "RowMetric",
    "Rows",
    "SenseOfTime",
    "TopKAccuracy",
    "central_view",
    "collect_rows",
    "compute_metrics",
    "extract_features",
    "fit_linear_probe",
    "for_each_group",
    "fuse_scores",
    "group_ids",
    "knn_scores",
    "load_features",
    "load_scores",
    "mean_class_accuracy",
    "nearest_neighbours",
    "retrieve",
    "save_features",
    "save_scores",
    "top_k_accuracy",
    "view_chunks",
]

__getattr__ = lazy_names(__name__, __file__)
