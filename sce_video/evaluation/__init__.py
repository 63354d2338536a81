"""Evaluation: rows of a data set, metrics, and the loops and the hook that compute them."""

from sce_video.utils.imports import lazy_names

#: The public names and their modules.
_MODULES = {
    "KNN": "metrics.features",
    "PROTOCOLS": "metrics",
    "AVAMeanAP": "metrics.classification",
    "ClipRetrieval": "metrics.features",
    "FeatureExtractionLoop": "extraction",
    "FeatureStatistics": "metrics.features",
    "FewShot": "metrics.features",
    "LiDAR": "metrics.features",
    "LinearProbe": "metrics.features",
    "MeanClassAccuracy": "metrics.classification",
    "MultiViewTestLoop": "loop",
    "MultiViewValLoop": "loop",
    "OnlineEvaluationHook": "online_evaluation_hook",
    "RankMe": "metrics.features",
    "Retrieval": "metrics.features",
    "RowMetric": "metrics.base",
    "Rows": "rows",
    "SenseOfTime": "metrics.sense_of_time",
    "TopKAccuracy": "metrics.classification",
    "central_view": "multi_view",
    "collect_rows": "rows",
    "compute_metrics": "metrics.base",
    "extract_features": "features",
    "fit_linear_probe": "functional.linear_probe",
    "for_each_group": "metrics.base",
    "fuse_scores": "scores",
    "group_ids": "functional.statistics",
    "knn_scores": "functional.neighbours",
    "load_features": "features",
    "load_scores": "scores",
    "mean_class_accuracy": "functional.statistics",
    "nearest_neighbours": "functional.neighbours",
    "retrieve": "metrics.features",
    "save_features": "features",
    "save_scores": "scores",
    "top_k_accuracy": "functional.statistics",
    "view_chunks": "multi_view",
}
__all__ = [*_MODULES]

__getattr__ = lazy_names(__name__, _MODULES)
