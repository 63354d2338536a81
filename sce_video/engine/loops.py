"""Training loop that can start in the middle of an epoch."""

from __future__ import annotations

from itertools import islice

import torch
from mmengine.hooks import CheckpointHook
from mmengine.runner import EpochBasedTrainLoop

from sce_video.datasets import naming_dead_workers
from sce_video.engine.device_copy import copied_ahead
from sce_video.engine.eval_data import check_labels
from sce_video.evaluation.collecting import unwrapped
from sce_video.registry import LOOPS


@LOOPS.register_module()
class ResumableTrainLoop(EpochBasedTrainLoop):
    """Epochs of whole optimiser steps, resumable at any of them.

    mmengine's epoch loop begins a resumed epoch anew. This one tells the sampler how many samples
    of the epoch were seen, so that they are neither trained on nor decoded again. With gradient
    accumulation an epoch ends with its last whole optimiser step; the few batches over are left
    out, so that an epoch's end never falls between two micro-batches.
    """

    @property
    def iters_per_epoch(self) -> int:
        """Iterations (micro-batches) of an epoch."""
        wrapper = self.runner.optim_wrapper
        if isinstance(wrapper, dict):  # not built yet
            accumulation = wrapper.get("accumulative_counts", 1)
        else:
            accumulation = wrapper._accumulative_counts
        return len(self.dataloader) // accumulation * accumulation

    @property
    def max_iters(self) -> int:
        """Iterations of the whole training."""
        return self._max_epochs * self.iters_per_epoch

    def run(self):
        """Train; refuses what could not be resumed or would never step."""
        if self.iters_per_epoch == 0:
            raise ValueError(
                f"{len(self.dataloader.dataset)} training samples do not fill one step of batch "
                f"size {self.dataloader.batch_size} per process: lower "
                "train_dataloader.batch_size or optim_wrapper.accumulative_counts"
            )
        head = getattr(unwrapped(self.runner.model), "cls_head", None)
        if head is not None:
            check_labels(self.dataloader.dataset, head.num_classes)
        accumulation = self.runner.optim_wrapper._accumulative_counts
        for hook in self.runner.hooks:
            if isinstance(hook, CheckpointHook) and not hook.by_epoch:
                if hook.interval > 0 and hook.interval % accumulation:
                    raise ValueError(
                        f"checkpoint interval {hook.interval} (iterations) must be a multiple of "
                        f"accumulative_counts={accumulation}: half a step cannot be resumed"
                    )
        try:
            return super().run()
        finally:
            # Persistent workers end at once when their iterator is dropped here; left to the
            # garbage collector each of them holds up the end of the program by seconds.
            self.dataloader._iterator = None

    def run_epoch(self) -> None:
        """Iterate over what is left of the epoch."""
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        seen = self._iter - self._epoch * self.iters_per_epoch
        if not 0 <= seen <= self.iters_per_epoch:
            raise ValueError(
                f"iteration {self._iter} is not in epoch {self._epoch} of {self.iters_per_epoch} "
                "iterations: the checkpoint is of another batch size or number of processes; "
                "resume with the same, or load its weights by --cfg-options load_from=PATH"
            )
        left = self.iters_per_epoch - seen
        if left:  # none when the checkpoint was written between an epoch's last step and its end
            if seen:
                self.dataloader.sampler.set_start(seen * self.dataloader.batch_size)
            with naming_dead_workers(self.dataloader):
                batches = copied_ahead(islice(self.dataloader, left), self._device())
                for idx, data_batch in enumerate(batches, start=seen):
                    self.run_iter(idx, data_batch)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1

    def _device(self) -> torch.device:
        return next(unwrapped(self.runner.model).parameters()).device
