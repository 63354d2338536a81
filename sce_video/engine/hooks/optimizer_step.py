"""What an algorithm does after the optimiser has really stepped."""

from __future__ import annotations

from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from sce_video.registry import HOOKS


@HOOKS.register_module()
class OptimizerStepHook(Hook):
    """Calls ``after_optimizer_step()`` of the algorithm once per real optimiser step.

    The optimiser itself tells: a hook on its ``step`` does not fire for the micro-batches of an
    accumulated step nor when the fp16 loss scaler skips an overflowing one; then the algorithm is
    told to ``discard_step()``. Before training rank 0's buffers (the queue) go to all ranks.
    """

    priority = "HIGH"

    def __init__(self) -> None:
        self._stepped = False
        self._handle = None

    def before_train(self, runner) -> None:
        self._algorithm = runner.model.module if is_model_wrapper(runner.model) else runner.model
        for buffer in self._algorithm.buffers():
            broadcast(buffer, src=0)
        optimizer = runner.optim_wrapper.optimizer
        self._handle = optimizer.register_step_post_hook(self._note_step)

    def _note_step(self, optimizer, args, kwargs) -> None:
        self._stepped = True

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self._stepped:
            self._algorithm.after_optimizer_step()
        elif runner.optim_wrapper.should_update():
            self._algorithm.discard_step()
        self._stepped = False

    def after_train(self, runner) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
