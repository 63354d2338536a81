"""Telling a method that the optimiser steps, and whether it has."""

from __future__ import annotations

from mmengine.dist import broadcast
from mmengine.hooks import Hook
from torch.utils.hooks import RemovableHandle

from sce_video.registry import HOOKS
from sce_video.utils.distributed import unwrap_model


@HOOKS.register_module()
class OptimizerStepHook(Hook):
    """Calls the model's ``before_`` and ``after_optimizer_step()`` once per real optimiser step.

    The optimiser itself reports a step: hooks of its ``step`` fire neither for the micro-batches of
    an accumulated step nor for a step that the fp16 loss scaler skips; for a skipped step
    ``discard_step()`` is called. Before training the buffers of rank 0 are copied to all ranks, so
    that all start from the same state.
    """

    priority = "HIGH"

    def __init__(self) -> None:
        self._stepped = False
        self._handles: list[RemovableHandle] = []

    def before_train(self, runner) -> None:
        self._model = unwrap_model(runner.model)
        for buffer in self._model.buffers():
            broadcast(buffer, src=0)
        optimizer = runner.optim_wrapper.optimizer
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._model.before_optimizer_step()),
            optimizer.register_step_post_hook(self._note_step),
        ]

    def _note_step(self, optimizer, args, kwargs) -> None:
        self._stepped = True

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self._stepped:
            self._model.after_optimizer_step()
        elif runner.optim_wrapper.should_update():
            self._model.discard_step()
        self._stepped = False

    def after_train(self, runner) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
