"""A warning while the loss is not below that of a network that tells no samples apart."""

from __future__ import annotations

import math

from mmengine.hooks import Hook

from sce_video.registry import HOOKS
from sce_video.utils.distributed import unwrap_model


@HOOKS.register_module()
class ChanceLevelHook(Hook):
    """Warns once in the middle of a training, and at its end, if the loss is that of chance.

    The chance level is the method's (``chance_level()``, see
    :class:`~sce_video.models.algorithms.base.SelfSupervisedModel`); a method without one is not
    watched. What is compared is the mean loss over the last iterations.

    Args:
        share: Share of the training, from 0 to 1, after which the first warning may come.
        window: Iterations of the mean.
        margin: The loss counts as that of chance above ``(1 - margin)`` times the chance level.

    Raises:
        ValueError: ``share`` or ``margin`` outside 0 to 1, or ``window`` below 1.
    """

    priority = "LOW"

    def __init__(self, share: float = 0.25, window: int = 20, margin: float = 0.01) -> None:
        if not 0 <= share <= 1 or not 0 <= margin <= 1:
            raise ValueError(f"share and margin must be from 0 to 1, got {share} and {margin}")
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.share = share
        self.window = window
        self.margin = margin

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Warn at ``share`` of the training."""
        if runner.iter + 1 == max(1, math.ceil(self.share * runner.train_loop.max_iters)):
            self._warn(runner, runner.iter + 1)

    def after_train(self, runner) -> None:
        """Warn at the end; not where a signal has ended the training."""
        if runner.iter == runner.train_loop.max_iters:
            self._warn(runner, runner.iter)

    def _warn(self, runner, done: int) -> None:
        chance = getattr(unwrap_model(runner.model), "chance_level", lambda: None)()
        if chance is None or "train/loss" not in runner.message_hub.log_scalars:
            return
        loss = float(runner.message_hub.get_scalar("train/loss").mean(self.window))
        if loss > (1 - self.margin) * chance:
            runner.logger.warning(
                f"after {done} of {runner.train_loop.max_iters} iterations the loss is {loss:.3f}, "
                f"not below chance level {chance:.3f}: the network does not tell samples apart "
                "yet. If it stays there: more iterations (train_cfg.max_epochs, a smaller batch) "
                "or another learning rate; docs/results.md has settings for few videos"
            )
