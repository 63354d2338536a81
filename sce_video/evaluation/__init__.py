"""Judging representations: features, kNN, linear probe, retrieval, collapse figures."""

from sce_video.evaluation.detection_loop import DetectionTestLoop
from sce_video.evaluation.extraction_loop import FeatureExtractionLoop
from sce_video.evaluation.features import (
    FeatureSet,
    check_labelled,
    check_same_size,
    extract_features,
    load_features,
    save_features,
)
from sce_video.evaluation.functional.accuracy import mean_class_accuracy, top_k_accuracy, top_k_hits
from sce_video.evaluation.functional.knn import knn_scores
from sce_video.evaluation.functional.linear_probe import LinearProbe, fit_linear_probe
from sce_video.evaluation.functional.neighbours import faiss_neighbours, nearest_neighbours
from sce_video.evaluation.functional.retrieval import (
    Ranking,
    Retrieval,
    centre,
    retrieval_hits,
    retrieval_recall,
    retrieve,
)
from sce_video.evaluation.judge import PROTOCOLS, group_ids, judge, resolve_protocols
from sce_video.evaluation.multi_view import central_view, view_chunks
from sce_video.evaluation.online_evaluation_hook import OnlineEvaluationHook
from sce_video.evaluation.recognition_loop import RecognitionTestLoop, RecognitionValLoop
from sce_video.evaluation.representation_loop import RepresentationTestLoop
from sce_video.evaluation.rows import evaluating
from sce_video.evaluation.scores import (
    ScoreSet,
    fuse_scores,
    load_scores,
    recognition_metrics,
    save_scores,
)
from sce_video.models.losses.collapse import effective_rank, feature_std

__all__ = [
    "PROTOCOLS",
    "DetectionTestLoop",
    "FeatureExtractionLoop",
    "FeatureSet",
    "LinearProbe",
    "OnlineEvaluationHook",
    "Ranking",
    "RecognitionTestLoop",
    "RecognitionValLoop",
    "RepresentationTestLoop",
    "Retrieval",
    "ScoreSet",
    "central_view",
    "centre",
    "check_labelled",
    "check_same_size",
    "effective_rank",
    "evaluating",
    "extract_features",
    "faiss_neighbours",
    "feature_std",
    "fit_linear_probe",
    "fuse_scores",
    "group_ids",
    "judge",
    "knn_scores",
    "load_features",
    "load_scores",
    "mean_class_accuracy",
    "nearest_neighbours",
    "recognition_metrics",
    "resolve_protocols",
    "retrieval_hits",
    "retrieval_recall",
    "retrieve",
    "save_features",
    "save_scores",
    "top_k_accuracy",
    "top_k_hits",
    "view_chunks",
]
