"""Files that could not be decoded, from the workers' samples to one report."""

from __future__ import annotations

from pathlib import Path

from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import Hook

from sce_video.datasets import BadFileReport
from sce_video.registry import HOOKS


@HOOKS.register_module()
class BadFileHook(Hook):
    """Collects the failures that come with the batches and stops when there are too many.

    Every rank counts its own as they come; at the end of an epoch all ranks' are merged, so that
    the report is complete and all ranks stop together.

    Args:
        max_bad_share: More than this share of the training files being unreadable stops the run.
        filename: Name of the report in the work directory.
    """

    def __init__(self, max_bad_share: float = 0.05, filename: str = "bad_files.tsv") -> None:
        if not 0.0 <= max_bad_share <= 1.0:
            raise ValueError(f"max_bad_share must be from 0 to 1, got {max_bad_share}")
        self.max_bad_share = max_bad_share
        self.filename = filename
        self._fresh: list[tuple[str, str]] = []

    def before_train(self, runner) -> None:
        path = Path(runner.work_dir) / self.filename if is_main_process() else None
        num_files = len(runner.train_dataloader.dataset)
        self.report = BadFileReport(path, self.max_bad_share, num_files)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        failures = data_batch.get("failures", [])
        if failures:
            self._fresh += failures
            self._add(runner, failures)

    def after_train_epoch(self, runner) -> None:
        everybody: list[list[tuple[str, str]]] = all_gather_object(self._fresh)
        own = set(self._fresh)
        self._fresh = []
        self._add(runner, [f for failures in everybody for f in failures if f not in own])
        if is_main_process() and self.report.num_bad:
            runner.logger.info(
                f"{self.report.num_bad} of {self.report.num_files} files could not be decoded "
                f"so far, see {self.report.path}"
            )

    def _add(self, runner, failures: list[tuple[str, str]]) -> None:
        known = self.report.num_bad
        self.report.add(failures)
        if self.report.num_bad > known:
            for path, error in failures:
                runner.logger.warning(f"cannot decode {path}, another video took its place: {error}")
