"""Judging representations: features, kNN, linear probe, retrieval, collapse figures."""

from sce_video.evaluation.accuracy import mean_class_accuracy, top_k_accuracy, top_k_hits
from sce_video.evaluation.collecting import evaluating
from sce_video.evaluation.features import (
    FeatureSet,
    extract_features,
    load_features,
    save_features,
)
from sce_video.evaluation.judge import PROTOCOLS, group_ids, judge, resolve_protocols
from sce_video.evaluation.knn import knn_scores
from sce_video.evaluation.linear_probe import LinearProbe, fit_linear_probe
from sce_video.evaluation.multi_view import central_view, view_chunks
from sce_video.evaluation.neighbours import nearest_neighbours
from sce_video.evaluation.retrieval import centre, retrieval_hits, retrieval_recall
from sce_video.evaluation.weights import check_backbone_weights
from sce_video.models.losses.health import effective_rank, feature_std

__all__ = [
    "PROTOCOLS",
    "FeatureSet",
    "LinearProbe",
    "central_view",
    "centre",
    "check_backbone_weights",
    "effective_rank",
    "evaluating",
    "extract_features",
    "feature_std",
    "fit_linear_probe",
    "group_ids",
    "judge",
    "knn_scores",
    "load_features",
    "mean_class_accuracy",
    "nearest_neighbours",
    "resolve_protocols",
    "retrieval_hits",
    "retrieval_recall",
    "save_features",
    "top_k_accuracy",
    "top_k_hits",
    "view_chunks",
]
