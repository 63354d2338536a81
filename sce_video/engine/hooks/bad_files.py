"""Report of the files that could not be decoded during a training."""

from __future__ import annotations

from pathlib import Path

from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import Hook

from sce_video.datasets import BadFileReport, TooManyBadFilesError
from sce_video.registry import HOOKS
from sce_video.utils.files import WriteError
from sce_video.utils.printable import printable_utf8


@HOOKS.register_module()
class BadFileHook(Hook):
    """Collects the decoding failures that come with the batches; stops when there are too many.

    Every rank counts its own failures as they come. At the end of an epoch those of all ranks are
    merged, so that the report, written by rank 0, is complete. A training with too many ends on all
    ranks, after a checkpoint, by a TooManyBadFilesError.

    Args:
        max_bad_share: Largest share of the training files, from 0 to 1, that may be unreadable.
        filename: Name of the report (JSON lines: path, count, error) in the work directory.

    Raises:
        ValueError: ``max_bad_share`` outside 0 to 1.
    """

    def __init__(self, max_bad_share: float = 0.05, filename: str = "bad_files.jsonl") -> None:
        if not 0.0 <= max_bad_share <= 1.0:
            raise ValueError(f"max_bad_share must be from 0 to 1, got {max_bad_share}")
        self.max_bad_share = max_bad_share
        self.filename = filename
        self._fresh: list[tuple[str, str]] = []
        self._warned = False

    def before_train(self, runner) -> None:
        """Start a report, or continue that of a resumed run."""
        path = Path(runner.work_dir) / self.filename
        if is_main_process() and runner.iter == 0:
            path.unlink(missing_ok=True)  # of an earlier run in the same folder
        self.report = BadFileReport(
            path if is_main_process() else None,
            num_files=len(runner.train_dataloader.dataset),
            max_bad_share=self.max_bad_share,
        )

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """End the training when this rank has met too many bad files."""
        failures = [tuple(failure) for failure in data_batch.get("failures", [])]
        for path, error in failures:
            if path not in self.report.counts:
                text = f"cannot decode {path}, another video replaces it: {error}"
                runner.logger.warning(printable_utf8(text))
        self._fresh += failures
        self._add(runner, failures)

    def after_train_epoch(self, runner) -> None:
        """Merge all ranks' failures; end the training when they are too many together."""
        of_all_ranks: list[list[tuple[str, str]]] = all_gather_object(self._fresh)
        own = set(self._fresh)
        self._fresh = []
        self._add(runner, [f for failures in of_all_ranks for f in failures if f not in own])
        if is_main_process() and len(self.report):
            runner.logger.info(
                f"{len(self.report)} of {self.report.num_files} files could not be decoded so "
                f"far, see {self.report.path}"
            )

    def _add(self, runner, failures: list[tuple[str, str]]) -> None:
        """Count failures; that the report cannot be written is said once, and it is tried again."""
        try:
            try:
                self.report.add(failures)
            except WriteError as error:
                if not self._warned:
                    runner.logger.warning(f"{error}; the training goes on")
                self._warned = True
                self.report.check()
        except TooManyBadFilesError as error:
            runner.train_loop.failure = error
