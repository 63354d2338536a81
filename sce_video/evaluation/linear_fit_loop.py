"""Training in one pass, which fits a linear classifier on the features of a frozen network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.runner import Runner
from torch import Tensor
from torch.utils.data import DataLoader

from sce_video.datasets.sources import video_state
from sce_video.engine.checkpoint import weights_sha256
from sce_video.engine.config.snapshot import plain
from sce_video.engine.train_loop import ResumableTrainLoop
from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.evaluation.functional.statistics import top_k_accuracy
from sce_video.evaluation.rows import evaluating
from sce_video.inference.features import Features, read_features, write_features
from sce_video.inference.multi_view import Batch, rows_of_views
from sce_video.registry import LOOPS
from sce_video.utils.distributed import gather_objects, unwrap_model
from sce_video.utils.records import at
from sce_video.utils.run_files import KNOWN_FEATURES


@LOOPS.register_module()
class LinearFitLoop(ResumableTrainLoop):
    """Loop that fits the linear head of a recogniser, and changes nothing else in it.

    One pass over the training videos computes the features of all their views, without
    augmentation. Videos whose features are in the run's folder (:func:`write_known`) are not read.
    Each view is a sample of a logistic regression, because a test averages the
    probabilities of the views of a video (:func:`fit_linear_probe`). Hooks, logs, checkpoint and
    test are the same as in any other training run. A resumed pass starts again, because features
    are not in a checkpoint.

    Args:
        runner: The runner. Its model has a backbone, and a ``cls_head`` with the layer ``fc_cls``.
        dataloader: Loader of the training videos, or its config.
        l2: Weight decay of the fit, on standardised features and the mean cross-entropy.
        max_views: Number of views per forward pass, which limits the device memory.
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
        #: Label and features (views, C) of each sample, by sample index.
        self._samples: dict[int, tuple[int, Tensor]] = {}

    def run_epoch(self) -> None:
        """Compute the features that are not known yet, and fit the classifier."""
        known, dataset = self._known(), self.dataloader.dataset
        # All ranks skip the known videos, but only one rank keeps their features for the fit.
        own = known if is_main_process() else {}
        self._samples = {i: (int(dataset.labels[i]), views) for i, views in own.items()}
        self._iter = 0
        if known:
            self.runner.logger.info(f"the features of {len(known)} videos are already known")
            dataset.leave_out(known)
        super().run_epoch()
        if known:
            dataset.leave_out(())

    def _known(self) -> dict[int, Tensor]:
        """Return the features (V, C) of videos that are in the run's folder, by index."""
        runner, dataset = self.runner, self.dataloader.dataset
        if not Path(runner.work_dir, KNOWN_FEATURES).is_file():
            return {}
        weights = weights_sha256(unwrap_model(runner.model).backbone.state_dict())
        known = read_known(runner.work_dir, feature_key(runner.cfg, weights))
        paths = map(dataset.path, range(len(dataset)))
        return {index: known[path] for index, path in enumerate(paths) if path in known}

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Compute the features of a batch; after the last one, fit the head."""
        self.runner.call_hook("before_train_iter", batch_idx=idx, data_batch=data_batch)
        self._add(data_batch)
        outputs = self._fit() if idx + 1 == self.iters_per_epoch else {}
        self.runner.call_hook(
            "after_train_iter", batch_idx=idx, data_batch=data_batch, outputs=outputs
        )
        self._iter += 1

    def _add(self, batch: Batch) -> None:
        """Add the features of a batch, which is empty if all of them are known."""
        if not len(batch["index"]):
            return
        with evaluating(self.runner.model) as model:

            def pooled(view: Tensor) -> Tensor:
                return F.adaptive_avg_pool3d(model.backbone(view), 1).flatten(1)

            features = rows_of_views(model, batch, pooled, self.max_views)
        named = zip(batch["index"].tolist(), batch["label"].tolist(), features, strict=True)
        # A replacement for an unreadable video has its own index, so it counts only once.
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


def feature_key(cfg: Config, weights: str) -> dict[str, object]:
    """Return everything that a video's features depend on, except its file.

    Args:
        cfg: Config of a linear fit.
        weights: Hash of the weights of its backbone.
    """
    parts = (cfg.model.backbone, cfg.data_preprocessor, cfg.train_dataloader.dataset.pipeline)
    return {"weights": weights, "parts": plain(parts)}


def write_known(
    folder: str | Path, key: Mapping[str, object], paths: Sequence[str], views: Tensor
) -> None:
    """Write features of training videos into a run's folder, before the fit.

    Args:
        folder: Folder of the run.
        key: Result of :func:`feature_key`.
        paths: N paths of videos, with their folder or table.
        views: (N, V, C) features of their views.

    Raises:
        WriteError: If the file cannot be written.
    """
    states = [video_state(path) for path in paths]
    provenance = {"key": key, "files": states, "num_views": views.shape[1]}
    values = views.float().flatten(1).numpy()
    write_features(Path(folder, KNOWN_FEATURES), Features(values, paths, provenance=provenance))


def read_known(folder: str | Path, key: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the features (V, C) that :func:`write_known` has stored, by video path.

    Videos whose files have changed since then are left out, and so are features of another network
    or pipeline.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged.
    """
    try:
        found = read_features(Path(folder, KNOWN_FEATURES))
    except ValueError as error:
        raise ValueError(f"{error}. Remove the file to compute the features again") from None
    states = at(found.provenance, "files", list)
    if at(found.provenance, "key") != key or states is None:
        return {}
    views = torch.from_numpy(np.array(found.values)).unflatten(1, (found.num_views, -1))
    rows = zip(found.paths, states, views, strict=True)
    return {path: value for path, state, value in rows if video_state(path) == state}
