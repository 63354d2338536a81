"""Training in one pass, which fits a linear classifier on the features of a frozen network."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.runner import Runner
from torch import Tensor
from torch.utils.data import DataLoader

from sce_video.engine.train_loop import ResumableTrainLoop
from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.evaluation.functional.statistics import top_k_accuracy
from sce_video.evaluation.rows import evaluating
from sce_video.inference.multi_view import rows_of_views
from sce_video.registry import LOOPS
from sce_video.utils.distributed import gather_objects, unwrap_model


@LOOPS.register_module()
class LinearFitLoop(ResumableTrainLoop):
    """Loop that fits the linear head of a recogniser, and changes nothing else in it.

    One pass over the training videos computes the features of all their views, without
    augmentation. Each view is a sample of a logistic regression, because a test averages the
    probabilities of the views of a video (:func:`fit_linear_probe`). Hooks, logs, checkpoint and
    test are the same as in any other training run. A resumed pass starts again, because features
    are not in a checkpoint.

    Args:
        runner: The runner. Its model has a backbone, and a ``cls_head`` with the layer ``fc_cls``.
        dataloader: Loader of the training videos, or its config.
        l2: Weight decay of the fit, on standardised features and the mean cross-entropy.
        max_views: Views per forward pass, which bound the memory of the device.
        max_epochs: Number of passes, 1.

    Raises:
        ValueError: If ``l2`` is not positive, or there are several passes.
    """

    learns_by_steps = False

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        l2: float = 0.1,
        max_views: int = 32,
        max_epochs: int = 1,
    ) -> None:
        if not l2 > 0:
            raise ValueError(f"l2 must be positive, got {l2}")
        if max_epochs != 1:
            raise ValueError(f"a linear fit needs one pass, max_epochs=1, got {max_epochs}")
        super().__init__(runner, dataloader, max_epochs)
        self.l2, self.max_views = l2, max_views
        #: Label and features (views, C) of each sample, by its index.
        self._samples: dict[int, tuple[int, Tensor]] = {}

    def run_epoch(self) -> None:
        """Compute all features, also if an earlier start has computed some, and fit the head."""
        self._iter, self._samples = 0, {}
        super().run_epoch()

    def run_iter(self, idx: int, data_batch: dict) -> None:
        """Compute the features of a batch; after the last one, fit the head."""
        self.runner.call_hook("before_train_iter", batch_idx=idx, data_batch=data_batch)
        self._add(data_batch)
        outputs = self._fit() if idx + 1 == self.iters_per_epoch else {}
        self.runner.call_hook(
            "after_train_iter", batch_idx=idx, data_batch=data_batch, outputs=outputs
        )
        self._iter += 1

    def _add(self, batch: dict[str, Any]) -> None:
        """Add the features of a batch."""
        with evaluating(self.runner.model) as model:

            def pooled(view: Tensor) -> Tensor:
                return F.adaptive_avg_pool3d(model.backbone(view), 1).flatten(1)

            features = rows_of_views(model, batch, pooled, self.max_views)
        named = zip(batch["index"].tolist(), batch["label"].tolist(), features, strict=True)
        # A video that replaces an unreadable one has its own index, and counts once.
        self._samples |= {index: (label, views.cpu()) for index, label, views in named}

    def _fit(self) -> dict[str, Tensor]:
        """Fit the head on the features of all ranks, and return loss and accuracy of the views."""
        merged: dict[int, tuple[int, Tensor]] = {}
        for part in gather_objects(self._samples):
            merged |= part
        samples = [merged[index] for index in sorted(merged)]
        features = torch.cat([views for _, views in samples])
        labels = torch.tensor([label for label, views in samples for _ in views])
        probe = fit_linear_probe(features, labels, l2_grid=(self.l2,))
        head = unwrap_model(self.runner.model).cls_head
        layer, scores = probe.as_layer(head.num_classes), probe.scores(features)
        with torch.no_grad():
            for parameter, values in zip(
                (head.fc_cls.weight, head.fc_cls.bias), layer, strict=True
            ):
                parameter.copy_(values)
        accuracy = top_k_accuracy(scores, labels, (1,))[1]
        self.runner.logger.info(
            f"fitted the classifier on {len(features)} clips of {len(samples)} videos, "
            f"{features.shape[1]} features each"
        )
        return {"loss": F.cross_entropy(scores, labels), "top1_acc": torch.tensor(accuracy)}
