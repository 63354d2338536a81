"""Loading of a finetuned classifier from a checkpoint, to classify new videos with it."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.registry import DefaultScope
from torch import nn

from sce_video.engine.weights import (
    bounded_network,
    check_classifier_weights,
    checked_parts,
    checkpoint_weights,
    load_backbone,
)
from sce_video.inference.embed import features_of_files, rows_of_videos
from sce_video.inference.features import Features
from sce_video.inference.model import read_network, select_device
from sce_video.inference.multi_view import Batch, BatchRows, class_scores
from sce_video.inference.network_input import (
    ModelSettings,
    Video,
    ViewOptions,
    settings_from_config,
    view_counts,
)
from sce_video.models.heads import AttentiveProbeHead
from sce_video.models.memory_format import move_to_device
from sce_video.registry import MODELS, own_classes
from sce_video.utils.records import at
from sce_video.utils.storage import absolute
from sce_video.utils.stored_arguments import constructor_parameters

_HEAD = "cls_head."
#: Heads that may be built from the config text of an untrusted checkpoint.
_KNOWN_HEADS = ("I3DHead", "mmaction.I3DHead", "AttentiveProbeHead")


class NoClassifierError(ValueError):
    """Error for a checkpoint whose network has no classes."""


@dataclass(frozen=True, eq=False)
class VideoClassifier:
    """A classifier with its input settings, made by :func:`load_classifier`.

    Attributes:
        recognizer: The network in eval mode, mmaction2's ``Recognizer3D``.
        settings: Backbone, normalisation, clip and crop of the test pipeline.
        options: Clips and crops of the test pipeline.
        classes: K names in the order of the outputs; numbers if the checkpoint contains no names.
        named: Whether ``classes`` are names.
        checkpoint: Absolute path or URL of the checkpoint file.
        device: Device of the network.
    """

    recognizer: nn.Module
    settings: ModelSettings
    options: ViewOptions
    classes: tuple[str, ...]
    named: bool
    checkpoint: str
    device: torch.device

    @property
    def row_size(self) -> int:
        """K, the number of classes."""
        return len(self.classes)

    def rows(self, batch: Batch, max_views: int) -> BatchRows:
        """Return class probabilities (n, K) of the videos in a batch: mean softmax over views."""
        with torch.inference_mode():
            return class_scores(max_views)(self.recognizer, batch)

    def to(self, device: torch.device) -> VideoClassifier:
        """Return the network on a device: itself, or a copy."""
        if device == self.device:
            return self
        recognizer = move_to_device(copy.deepcopy(self.recognizer), device)
        return replace(self, recognizer=recognizer, device=device)


def load_classifier(
    checkpoint: str | Path,
    config: str | Path | None = None,
    device: str | torch.device | None = None,
    classes: Sequence[str] | None = None,
) -> VideoClassifier:
    """Load the classifier from a finetuning, linear evaluation or supervised training run.

    The views come from the test pipeline of the config in the checkpoint, and the class names from
    the sub-folders of the training videos. The config is read as in
    :func:`~sce_video.inference.model.load_model`.

    Args:
        checkpoint: A run or a checkpoint.
        config: Config file, for a checkpoint that contains none.
        device: For example "cuda:1"; None selects a GPU if there is one.
        classes: Names in the order of the outputs; None for the checkpoint's. A checkpoint trained
            from lists contains no names, which are then "0", "1", ...

    Raises:
        FileNotFoundError: If there is no such checkpoint or config.
        ValueError: If the checkpoint has no classifier, the number of names is wrong, or
            :func:`~sce_video.inference.model.load_model` would raise it.
    """
    network = read_network(checkpoint, config)
    checkpoint, stored, cfg = network.checkpoint, network.content, network.config
    if at(cfg, "model.roi_head") is not None:
        raise ValueError(
            f"{checkpoint} classifies actions of person boxes (roi_head), not videos. Use "
            "sce_video.inference.person_actions"
        )
    if (head := at(cfg, "model.cls_head", dict)) is None:
        raise NoClassifierError(
            f"{checkpoint} has no classifier (cls_head), because its model is "
            f"{at(cfg, 'model.type')!r}. Finetune it first: sce-video finetune CHECKPOINT --train "
            "VIDEOS --out RUN"
        )
    # Leave out the training pipeline, because it may sample other clips than the test pipeline.
    test_only = {k: cfg[k] for k in ("model", "data_preprocessor", "test_dataloader") if k in cfg}
    with network.explained():
        settings = settings_from_config(test_only, trusted=network.trusted)
        num_clips, num_crops = view_counts(test_only)
        kind = at(head, "type", str)
        if kind in own_classes("model"):
            head = checked_parts(head)
        elif not network.trusted or kind in _KNOWN_HEADS:
            head = _known_head(head, stored)
    selected = select_device(device)
    recognizer = move_to_device(_build(settings, head, stored, checkpoint), selected)
    if getattr(recognizer.cls_head, "selected", 0) is None:
        raise ValueError(
            f"the classifier of {checkpoint} is a grid of probes. Set model.cls_head.selected in "
            "the config to the index of one of them. The test writes the index that it selects to "
            "results.json"
        )
    names = _class_names(stored, classes, recognizer.cls_head.num_classes, checkpoint)
    return VideoClassifier(
        recognizer=recognizer,
        settings=settings,
        options=ViewOptions(num_clips=num_clips, num_crops=num_crops),
        classes=names or tuple(map(str, range(recognizer.cls_head.num_classes))),
        named=bool(names),
        checkpoint=absolute(checkpoint),
        device=selected,
    )


def _known_head(head: dict, stored: dict) -> dict[str, object]:
    """Return the config of the head, with the sizes of the stored weights."""
    given = {"type": None, "spatial_type": "avg", **head}
    if given["type"] not in _KNOWN_HEADS or given["spatial_type"] != "avg":
        raise ValueError(
            f"cls_head is a {given['type']!r} with spatial_type {given['spatial_type']!r}, but "
            f"only {_KNOWN_HEADS[0]} with 'avg' and {_KNOWN_HEADS[2]} can be built from a "
            "checkpoint"
        )
    probes = head["type"] == _KNOWN_HEADS[2]
    name = f"{_HEAD}probes.0.fc_cls.weight" if probes else f"{_HEAD}fc_cls.weight"
    weight = checkpoint_weights(stored).get(name)
    if not torch.is_tensor(weight) or weight.ndim != 2:
        raise ValueError(f"the file contains no classifier weights ({name})")
    found = {"num_classes": weight.shape[0], "in_channels": weight.shape[1]}
    if not probes:
        return {"type": _KNOWN_HEADS[0], **found}
    # Values are not checked here, because building the head rejects wrong ones.
    own = {k: head[k] for k in head.keys() & constructor_parameters(AttentiveProbeHead).keys()}
    return {"type": _KNOWN_HEADS[2], **own, **found}


def _build(settings: ModelSettings, head: Mapping[str, object], stored: dict, name: str) -> Any:
    """Build the recogniser with the weights of the checkpoint, in eval mode."""
    preprocessor = dict(type="RecognizerDataPreprocessor", mean=settings.mean, std=settings.std)
    model = dict(type="Recognizer3D", backbone=settings.backbone, cls_head=head)
    weights = checkpoint_weights(stored)
    try:
        # mmaction2's recogniser looks up names in the current default scope.
        with DefaultScope.overwrite_default_scope("sce_video"), bounded_network(weights):
            recognizer = MODELS.build({**model, "data_preprocessor": preprocessor})
    except Exception as error:  # wrong arguments may raise any error
        raise ValueError(f"{name}: the network cannot be built: {error}") from error
    load_backbone(recognizer, stored, name)
    check_classifier_weights(recognizer, stored, name)
    own = recognizer.cls_head.state_dict()
    recognizer.cls_head.load_state_dict({key: weights[_HEAD + key] for key in own})
    return recognizer.eval().requires_grad_(False)


def _class_names(
    stored: dict, given: Sequence[str] | None, num_classes: int, checkpoint: str
) -> tuple[str, ...]:
    """Return the given names, else the names in the checkpoint, else an empty tuple."""
    names = at(stored, "meta.classes") if given is None else given
    if names is None or (given is None and len(names) == 0):
        return ()
    names = tuple(map(str, names))
    if len(names) != num_classes:
        source = "given" if given is not None else f"in {checkpoint}"
        raise ValueError(
            f"{len(names)} class names are {source}, but the classifier of {checkpoint} has "
            f"{num_classes} classes"
        )
    return names


def class_probabilities(
    classifier: VideoClassifier,
    videos: Video | Sequence[Video],
    options: ViewOptions | None = None,
    *,
    fps: float | None = None,
) -> np.ndarray:
    """Compute class probabilities of videos: the mean softmax vector over the views of each.

    Arguments and errors are as in :func:`~sce_video.inference.embed.embed_videos`, except that
    ``options`` default to the views of the test pipeline. TypeError is raised if the model is not a
    classifier.

    Returns:
        (N, K) float32, with the classes in the order of ``classifier.classes``. Rows sum to 1.
    """
    _check_classifier(classifier)
    return rows_of_videos(classifier, videos, options or classifier.options, fps)


def predict_files(
    classifier: VideoClassifier,
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    options: ViewOptions | None = None,
) -> Features:
    """Compute class probabilities of files. Files that cannot be decoded are listed as failures.

    Returns:
        ``values`` (M, K), ``paths`` and ``indices`` of the M files that could be decoded, and
        ``failures``, (path, reason) of the others.
    """
    _check_classifier(classifier)
    return features_of_files(classifier, paths, options or classifier.options)


def _check_classifier(classifier: object) -> None:
    if not isinstance(classifier, VideoClassifier):
        given = repr(classifier) if isinstance(classifier, str) else type(classifier).__name__
        raise TypeError(f"expected a classifier from load_classifier(CHECKPOINT), got {given}")


def top_classes(
    probabilities: np.ndarray, classes: Sequence[str], k: int
) -> list[tuple[str, float]]:
    """Return name and probability of the k most probable classes. Ties keep the order of classes.

    ``k`` must be at least 1. There may be fewer classes.
    """
    if k < 1:
        raise ValueError(f"the number of classes to return must be at least 1, got {k}")
    order = np.argsort(-probabilities, kind="stable")[:k]
    return [(classes[i], float(probabilities[i])) for i in order]
