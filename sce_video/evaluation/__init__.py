"""Evaluation: dataset rows, metrics, and the loops and the hook that compute them."""

from sce_video.utils.imports import lazy_names

#: The public names and their modules.
_MODULES = {
    "KNN": "metrics.feature_metrics",
    "PROTOCOLS": "metrics",
    "AVAMeanAP": "metrics.classification",
    "ClipRetrieval": "metrics.feature_metrics",
    "FeatureExtractionLoop": "extraction",
    "FeatureStatistics": "metrics.feature_metrics",
    "FewShot": "metrics.feature_metrics",
    "LiDAR": "metrics.feature_metrics",
    "LinearFitLoop": "linear_fit_loop",
    "LinearProbe": "metrics.feature_metrics",
    "LinearStartHook": "linear_start_hook",
    "MeanClassAccuracy": "metrics.classification",
    "MultiViewTestLoop": "loop",
    "MultiViewValLoop": "loop",
    "OnlineEvaluationHook": "online_evaluation_hook",
    "RankMe": "metrics.feature_metrics",
    "Retrieval": "metrics.feature_metrics",
    "RowMetric": "metrics.base",
    "Rows": "rows",
    "SenseOfTime": "metrics.sense_of_time",
    "TopKAccuracy": "metrics.classification",
    "collect_rows": "rows",
    "compute_metrics": "metrics.base",
    "extract_features": "feature_files",
    "fit_linear_probe": "functional.linear_probe",
    "for_each_group": "metrics.base",
    "group_ids": "functional.statistics",
    "knn_scores": "functional.neighbours",
    "load_features": "feature_files",
    "load_scores": "scores",
    "mean_class_accuracy": "functional.statistics",
    "nearest_neighbours": "functional.neighbours",
    "rank_gallery": "metrics.feature_metrics",
    "save_features": "feature_files",
    "save_scores": "scores",
    "top_k_accuracy": "functional.statistics",
    "weighted_mean": "scores",
}
__all__ = [*_MODULES]

__getattr__ = lazy_names(__name__, _MODULES)
