"""The recogniser and classification head of mmaction2, for installations without mmaction2.

As far as the recipes use them, the classes have the same names, arguments, weights, losses and
scores as ``Recognizer3D``, ``I3DHead`` and ``ActionDataSample`` of open-mmlab/mmaction2 1.1.0. If
mmaction2 is installed, a config that names these classes uses mmaction2's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel, BaseModule
from mmengine.model.weight_init import normal_init
from mmengine.structures import BaseDataElement, LabelData
from torch import Tensor, nn

from sce_video.models.backbones.common import init_info_to_file
from sce_video.registry import MODELS, mmaction_installed
from sce_video.utils.stored_arguments import Features, Outputs, PartConfig


class ActionDataSample(BaseDataElement):
    """Data of a video: ``gt_labels`` and, after a test, ``pred_scores`` and ``pred_labels``."""

    def set_gt_labels(self, value: Tensor) -> ActionDataSample:
        """Set the label, int64 (1,)."""
        self.gt_labels = LabelData(item=value)
        return self


def sample_labels(data_samples: Sequence[Any], device: torch.device) -> Tensor:
    """Return the labels (N,) int64 of a batch on a device.

    mmaction2 stores each label in an object of its own, an ``ActionDataSample``.
    """
    return torch.cat([sample.gt_labels.item for sample in data_samples]).to(device)


class I3DHead(BaseModule):
    """Average over time and space, dropout, and a linear layer.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the backbone's last map.
        dropout_ratio: Share of the channels that is dropped in training.
        init_std: Standard deviation of the initial weights of the linear layer.
        average_clips: ``prob`` averages the probabilities over the views of a video, and ``score``
            averages the logits. None keeps the logits of each view.
        label_smooth_eps: Share of the target that is spread over all classes.
        topk: Values of k for which top-k accuracy is logged in training.

    Raises:
        ValueError: If ``average_clips`` is not one of these values.
    """

    _dump_init_info = init_info_to_file

    def __init__(
        self,
        num_classes: Outputs,
        in_channels: Features,
        dropout_ratio: float = 0.5,
        init_std: float = 0.01,
        average_clips: str | None = None,
        label_smooth_eps: float = 0.0,
        topk: Sequence[int] = (1, 5),
    ) -> None:
        super().__init__()
        if average_clips not in ("prob", "score", None):
            raise ValueError(f"average_clips must be prob, score or None, got {average_clips!r}")
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.dropout_ratio = dropout_ratio
        self.init_std = init_std
        self.average_clips = average_clips
        self.label_smooth_eps = label_smooth_eps
        self.topk = topk
        self.dropout = nn.Dropout(dropout_ratio) if dropout_ratio else None
        self.fc_cls = nn.Linear(in_channels, num_classes)

    def init_weights(self) -> None:
        """Draw the weights of the linear layer, and set its bias to 0."""
        normal_init(self.fc_cls, std=self.init_std)

    def forward(self, features: Tensor, loss_aux: dict | None = None) -> Tensor:
        """Return the logits (N, K) of feature maps (N, C, T, H, W).

        ``loss_aux`` is an argument of mmaction2, which is not used here.
        """
        pooled = F.adaptive_avg_pool3d(features, 1)
        return self.fc_cls((self.dropout(pooled) if self.dropout else pooled).flatten(1))

    def loss(self, features: Tensor, data_samples: Sequence[Any]) -> dict[str, Tensor]:
        """Compute the cross-entropy ``loss_cls`` and the accuracies ``top1_acc`` and ``top5_acc``.

        Args:
            features: Maps (N, C, T, H, W) of one view of each video.
            data_samples: N samples with a label each.

        Returns:
            Scalars by name. Accuracies are between 0 and 1.
        """
        logits = self(features)
        labels = sample_labels(data_samples, logits.device)
        order = logits.detach().argsort(dim=1, descending=True)
        hits = order == labels[:, None]
        accuracies = {f"top{k}_acc": hits[:, :k].any(dim=1).double().mean() for k in self.topk}
        smoothing = self.label_smooth_eps
        return {
            **accuracies,
            "loss_cls": F.cross_entropy(logits, labels, label_smoothing=smoothing),
        }

    def predict(self, features: Tensor, data_samples: Sequence[Any]) -> Sequence[Any]:
        """Set ``pred_scores`` and ``pred_labels`` of each video, from the maps of all its views.

        Args:
            features: Maps of N * V views. The views of a video are adjacent.
            data_samples: N samples.

        Returns:
            The samples. Scores are (K,), or (V, K) if views are not averaged.
        """
        scores = self(features).unflatten(0, (len(data_samples), -1))
        if self.average_clips is not None:
            scores = (scores.softmax(dim=2) if self.average_clips == "prob" else scores).mean(dim=1)
        for sample, score in zip(data_samples, scores, strict=True):
            sample.pred_scores = LabelData(item=score)
            sample.pred_labels = LabelData(item=score.argmax(dim=-1, keepdim=True))
        return data_samples


class Recognizer3D(BaseModel):
    """A backbone and a classification head that are trained with labels.

    The names of the weights begin with ``backbone.`` and ``cls_head.`` as in mmaction2, so
    checkpoints can be exchanged.

    Args:
        backbone: Config of a network that maps clips (N, C, T, H, W) to maps (N, C', T', H', W').
        cls_head: Config of the head, or None if only maps are needed.
        data_preprocessor: Config of the class that turns a batch into ``inputs`` and
            ``data_samples``. None uses mmengine's, which moves tensors to the device.
    """

    _dump_init_info = init_info_to_file

    def __init__(
        self,
        backbone: PartConfig,
        cls_head: PartConfig | None = None,
        data_preprocessor: PartConfig | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor)
        self.backbone = MODELS.build(backbone)
        if cls_head is not None:
            self.cls_head = MODELS.build(cls_head)

    def forward(
        self,
        inputs: Tensor,
        data_samples: Sequence[Any] | None = None,
        mode: str = "tensor",
        stage: str = "backbone",
    ) -> Any:
        """Compute losses, predictions or a tensor.

        Args:
            inputs: (N, V, C, T, H, W), V views of each video. A loss needs one view.
            data_samples: N samples, which need labels for a loss. Predicted scores are stored in
                them.
            mode: ``loss``, ``predict`` or ``tensor``.
            stage: With ``tensor``, ``backbone`` returns the maps of the N * V views, and ``head``
                their logits.

        Raises:
            ValueError: If the mode is unknown.
        """
        features = self.backbone(inputs.flatten(0, 1))
        if mode == "loss":
            return self.cls_head.loss(features, data_samples)
        if mode == "predict":
            return self.cls_head.predict(features, data_samples)
        if mode != "tensor":
            raise ValueError(f"mode must be loss, predict or tensor, got {mode!r}")
        return self.cls_head(features) if stage == "head" else features


if not mmaction_installed():
    MODELS.register_module(module=Recognizer3D)
    MODELS.register_module(module=I3DHead)
