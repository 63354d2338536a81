"""The queue of keys, which MoCo calls a dictionary, and the paper a memory buffer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.utils.distributed import gather_samples
from sce_video.utils.errors import Alarm


class KeyQueue(nn.Module):
    """The last ``size`` keys of the target branch, first in, first out.

    The queue is initialised with random unit vectors. Keys are *staged* when they are computed, and
    *committed* after the optimiser step, so all micro-batches of a step use the same queue.
    ``keys_per_step`` is the number of keys in the last step, or None before the first one.

    The checkpoint contains the buffers ``keys`` (K, D) float32 and ``pointer`` () int64, the index
    of the oldest key.
    """

    keys: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise ValueError(f"size and dim of a queue must be at least 1, got {size} and {dim}")
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self._staged: list[Tensor] = []
        self.keys_per_step: int | None = None
        self._filled: int | None = 0  # None after loading a checkpoint, until it is counted

    @torch.no_grad()
    def stage(self, keys: Tensor) -> None:
        """Gather the keys (N, D) of all ranks, and keep them until :meth:`commit`.

        Keys are stored in the order of the global batch, so the queue does not depend on the number
        of ranks. All ranks must stage the same number of keys.
        """
        self._staged.append(gather_samples(keys.detach().to(self.keys.dtype)))

    @torch.no_grad()
    def commit(self) -> None:
        """Replace the oldest keys with the staged ones."""
        if not self._staged:
            return
        size = self.keys.shape[0]
        staged = torch.cat(self._staged)
        self._staged.clear()
        self.keys_per_step = len(staged)
        if self._filled is not None:
            self._filled += len(staged)
        # If a step produces more keys than the queue can hold, the oldest keys never enter it.
        keys = staged[-size:]
        # Compute the indices on the device, because reading the pointer would make the host wait.
        slots = (self.pointer + torch.arange(len(keys), device=keys.device)) % size
        self.keys.index_copy_(0, slots, keys)
        self.pointer.copy_((self.pointer + len(keys)) % size)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._filled = None

    def is_full(self) -> bool:
        """Return whether a queue that was initialised with zeros has keys in all slots.

        Only the first call after loading a checkpoint waits for the device.
        """
        if self._filled is None:
            self._filled = int(self.keys.any(dim=1).sum())
        return self._filled >= len(self.keys)

    def discard_staged(self) -> None:
        """Discard the staged keys, because the optimiser skipped their step."""
        self._staged.clear()


def queue_warnings(
    size: int, num_samples: int, batch_size: int, num_target_views: int | None
) -> list[str | Alarm]:
    """Return warnings about a queue whose size does not suit the data.

    Args:
        size: Number of keys in the queue, K.
        num_samples: Number of training samples.
        batch_size: Number of samples N per optimiser step, over all ranks. A step stages N keys of
            each target view.
        num_target_views: Number of target views, or None if it is not known.
    """
    warnings: list[str | Alarm] = []
    if size > num_samples:
        text = (
            f"the queue holds {size} keys and there are {num_samples} training samples, so every "
            "sample is among its own negatives. Set model.queue_size below the number of samples"
        )
        warnings.append(Alarm(text, "queue_size", size, num_samples))
    made = batch_size * (num_target_views or 1)
    if size >= made:
        return [*warnings, *uneven_queue_warnings(size, batch_size)]
    advice = f"Set model.queue_size to {made} or a multiple"
    if made > num_samples:  # a queue of this size would cause the warning above
        advice = f"Use a smaller batch, because the queue can have at most {num_samples} keys"
    return [
        *warnings,
        f"a step makes {made} keys and model.queue_size={size}, so only the last {size} keys of a "
        f"step are ever compared. {advice}",
    ]


def uneven_queue_warnings(size: int, batch_size: int) -> list[str]:
    """Return a warning if whole batches do not fill a queue exactly.

    :func:`queue_warnings` describes the arguments.
    """
    if size % batch_size == 0:
        return []
    return [
        f"model.queue_size={size} is not a multiple of the {batch_size} keys that a step makes of "
        f"a view, so the queue keeps only {size % batch_size} keys of the oldest batch. "
        f"{max(size // batch_size, 1) * batch_size} keys would be whole batches"
    ]
