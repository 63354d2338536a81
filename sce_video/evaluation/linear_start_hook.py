"""Start of a classifier from a linear probe of the network's features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor
from torch.utils.data import DataLoader

from sce_video.engine.checkpoint import random_states, set_random_states
from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.evaluation.functional.statistics import top_k_accuracy
from sce_video.evaluation.rows import Rows, build_eval_dataloader, collect_rows
from sce_video.inference.multi_view import Batch, BatchRows, rows_of_views
from sce_video.registry import HOOKS
from sce_video.utils.distributed import run_on_main_rank, unwrap_model


@HOOKS.register_module()
class LinearStartHook(Hook):
    """Hook that starts the linear classifier of a recogniser from a probe of its features.

    A classifier with random weights changes the features of a pretrained network before it has
    learned anything itself. Before the first step, this hook therefore computes the features of the
    training videos without augmentation, and fits a logistic regression to them (Kumar et al. 2022,
    "Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution", arXiv
    2202.10054). Random states are kept. A resumed run has its classifier already.

    Args:
        dataloader: Loader of the training videos, or its config.
        max_views: Number of views per forward pass, which limits the device memory.
    """

    priority = "LOW"

    def __init__(self, dataloader: dict | DataLoader, max_views: int = 32) -> None:
        self.dataloader, self.max_views = dataloader, max_views

    def before_train(self, runner: Runner) -> None:
        """Fit the classifier, unless the run has steps already."""
        if runner.iter > 0:
            return
        states = random_states()
        try:
            loader = build_eval_dataloader(self.dataloader, runner.seed)
            rows = collect_rows(runner.model, loader, self._mean_of_views)
            layer = unwrap_model(runner.model).cls_head.fc_cls
            run_on_main_rank(lambda: _fit(runner, rows, layer))
            for parameter in (layer.weight, layer.bias):
                broadcast(parameter.data)
        finally:
            set_random_states(states)

    def _mean_of_views(self, model: Any, batch: Batch) -> BatchRows:
        """Return the features of every video of a batch, averaged over its views."""

        def pooled(view: Tensor) -> Tensor:
            return F.adaptive_avg_pool3d(model.backbone(view), 1).flatten(1)

        videos = rows_of_views(model, batch, pooled, self.max_views)
        mean = torch.stack([views.mean(dim=0) for views in videos]).cpu()
        return BatchRows(mean, max(map(len, videos)))


def _fit(runner: Runner, rows: Rows | None, layer: torch.nn.Linear) -> None:
    """Fit the layer to the features of all training videos."""
    assert rows is not None  # only called on the main rank, which has the rows
    probe = fit_linear_probe(rows.values, rows.labels, seed=runner.seed)
    with torch.no_grad():
        for parameter, values in zip(
            (layer.weight, layer.bias), probe.as_layer(layer.out_features), strict=True
        ):
            parameter.copy_(values)
    accuracy = top_k_accuracy(probe.scores(rows.values), rows.labels, (1,))[1]
    runner.logger.info(
        f"the classifier starts from a linear probe of {len(rows.labels)} training videos, of "
        f"which it classifies {100 * accuracy:.1f} % correctly"
    )
