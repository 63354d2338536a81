"""The queue of keys (the memory buffer of MoCo and of the paper)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.utils.distributed import gather_samples
from sce_video.utils.errors import NamedWarning


class KeyQueue(nn.Module):
    """The last ``size`` keys of the target branch, first in, first out; random unit vectors first.

    Keys are *staged* as they are computed and *committed* after the optimiser step, so that all
    micro-batches of a step see the same queue. ``keys_per_step`` is the number of keys of the last
    step, None before the first.

    Buffers (in the checkpoint): ``keys`` (K, D) float32; ``pointer`` () int64, the index of the
    oldest key.
    """

    keys: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise ValueError(f"a queue needs size and dim of at least 1, got {size} and {dim}")
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self._staged: list[Tensor] = []
        self.keys_per_step: int | None = None
        self._filled: int | None = 0  # None: as many as the checkpoint has

    @torch.no_grad()
    def stage(self, keys: Tensor) -> None:
        """Gather the keys (N, D) of all ranks and keep them until :meth:`commit`.

        They have the order of the global batch, so the queue does not depend on the number of
        ranks, which must stage the same number of keys.
        """
        self._staged.append(gather_samples(keys.detach().to(self.keys.dtype)))

    @torch.no_grad()
    def commit(self) -> None:
        """Replace the oldest keys by the staged ones."""
        if not self._staged:
            return
        size = self.keys.shape[0]
        staged = torch.cat(self._staged)
        self._staged.clear()
        self.keys_per_step = len(staged)
        if self._filled is not None:
            self._filled += len(staged)
        # A step may make more keys than the queue holds: the oldest of them never enter.
        keys = staged[-size:]
        # Index arithmetic on the device: reading the pointer would synchronise host and device.
        slots = (self.pointer + torch.arange(len(keys), device=keys.device)) % size
        self.keys.index_copy_(0, slots, keys)
        self.pointer.copy_((self.pointer + len(keys)) % size)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._filled = None

    def is_full(self) -> bool:
        """Whether keys are in all slots of a queue that was filled with zeros at the start.

        Only the first call after loading a checkpoint waits for the device.
        """
        if self._filled is None:
            self._filled = int(self.keys.any(dim=1).sum())
        return self._filled >= len(self.keys)

    def discard_staged(self) -> None:
        """Discard the staged keys: their step was skipped, e.g. after an fp16 overflow."""
        self._staged.clear()


def queue_warnings(
    size: int, num_samples: int, batch_size: int, num_target_views: int | None
) -> list[str]:
    """Warnings of a queue of K keys that costs quality with data of this size.

    ``batch_size`` N are the samples of an optimiser step over all ranks; it stages N keys of each
    of G target views, None if G is not known.
    """
    warnings: list[str] = []
    if size > num_samples:
        text = (
            f"the queue holds {size} keys and there are {num_samples} training samples: every "
            "sample is among its own negatives; set model.queue_size below that number"
        )
        warnings.append(NamedWarning(text, "queue_size", size, num_samples))
    made = batch_size * (num_target_views or 1)
    if size >= made:
        return warnings + uneven_queue_warnings(size, batch_size)
    advice = f"set model.queue_size to {made} or a multiple"
    if made > num_samples:  # a queue of so many keys would be warned of above
        advice = f"a queue of {num_samples} keys or fewer needs a smaller batch"
    return [
        *warnings,
        f"a step makes {made} keys and model.queue_size={size}: all but its last {size} keys "
        f"are dropped before they are compared; {advice}",
    ]


def uneven_queue_warnings(size: int, batch_size: int) -> list[str]:
    """A warning if batches do not fill a queue exactly; arguments of :func:`queue_warnings`."""
    if size % batch_size == 0:
        return []
    return [
        f"model.queue_size={size} is no multiple of the {batch_size} keys that a step makes of a "
        f"view: of the oldest keys only those of {size % batch_size} samples are left; "
        f"{max(size // batch_size, 1) * batch_size} keys would be whole batches"
    ]
