"""When checkpoints are written and removed."""

from __future__ import annotations

import os
from pathlib import Path

import mmengine.hooks
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend

from sce_video.registry import HOOKS
from sce_video.utils.files import write_text


class _RemovesLater(LocalBackend):
    """Files in the local file system; ``remove`` only notes what :meth:`remove_noted` removes."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    def remove(self, filepath: str | Path) -> None:
        """Note a file."""
        self._noted.add(os.fspath(filepath))

    def isdir(self, filepath: str | Path) -> bool:
        """No checkpoint is a folder: mmengine would remove it with all that is in it."""
        return False

    def remove_noted(self, keep: set[str | None]) -> list[str]:
        """Remove the noted files except those that were written since; returns their names."""
        removed = sorted(self._noted - keep)
        for path in removed:
            Path(path).unlink(missing_ok=True)
        self._noted.clear()
        return [Path(path).name for path in removed]


@HOOKS.register_module()
class CheckpointHook(mmengine.hooks.CheckpointHook):
    """mmengine's hook, which removes an outdated checkpoint only when its successor is complete.

    mmengine 0.10.7 removes first, also with ``save_best``: where the disk is full then, a run that
    keeps one checkpoint has none. The arguments are mmengine's; the disk needs room for one
    checkpoint more than ``max_keep_ckpts``.
    """

    def before_train(self, runner) -> None:
        """Prepare as mmengine does; removes what a lower ``max_keep_ckpts`` no longer keeps."""
        super().before_train(runner)
        self.file_backend = _RemovesLater()

    def _save_checkpoint_with_step(self, runner, step: int, meta: dict) -> None:
        """Write a checkpoint and its name to ``last_checkpoint``; then remove the outdated one."""
        if self.max_keep_ckpts > 0 and list(self.keep_ckpt_ids)[-1:] != [step]:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                self.file_backend.remove(self._path(self.keep_ckpt_ids[0]))
            self.keep_ckpt_ids.append(step)  # drops the first of max_keep_ckpts
            runner.message_hub.update_info("keep_ckpt_ids", list(self.keep_ckpt_ids))
        self.last_ckpt = self._path(step)
        runner.message_hub.update_info("last_ckpt", self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir,
            self.filename_tmpl.format(step),
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if is_main_process():
            write_text(Path(runner.work_dir) / "last_checkpoint", self.last_ckpt)
            self._remove_outdated(runner)

    def _save_best_checkpoint(self, runner, metrics: dict) -> None:
        super()._save_best_checkpoint(runner, metrics)
        if is_main_process():
            self._remove_outdated(runner)

    def _remove_outdated(self, runner) -> None:
        several = getattr(self, "best_ckpt_path_dict", {})
        best = {getattr(self, "best_ckpt_path", None), *several.values()}
        names = self.file_backend.remove_noted(keep={self.last_ckpt, *best})
        runner.call_hook("after_removal", names=names)

    def _path(self, step: int) -> str:
        return os.path.join(self.out_dir, self.filename_tmpl.format(step))
