"""The only assignments to private attributes and settings of torch and mmengine.

Each function explains why there is no public way. They were tested with torch 2.13.0 and mmengine
0.10.7. ``tests/test_structure.py`` refuses such assignments in any other module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mmengine.optim import OptimWrapper
    from mmengine.runner import BaseLoop
    from torch.utils.data import DataLoader


def end_persistent_workers(loader: DataLoader) -> None:
    """End the persistent workers of a loader, whose next iterator starts new ones.

    torch ends workers when their iterator is deleted, but the loader keeps the iterator, and torch
    has no function that drops it. Otherwise, each worker delays the end of the program by seconds.
    """
    loader._iterator = None


def set_accumulation(optimizer: OptimWrapper, count: int) -> None:
    """Set the number of micro-batches per step in an optimiser wrapper that is in use.

    mmengine accepts the number only in the constructor. In a resumed run, it becomes known only
    after hooks and schedulers have received the wrapper.
    """
    optimizer._accumulative_counts = count


def set_progress(loop: BaseLoop, epoch: int, iteration: int) -> None:
    """Set the epoch and the iteration at which a training loop continues.

    The loops of mmengine have read-only properties for both. Its own ``Runner.resume`` assigns the
    same attributes.
    """
    loop._epoch = epoch
    loop._iter = iteration


def set_cudnn_benchmark(on: bool) -> None:
    """Set whether cuDNN tries its algorithms for each new shape.

    torch's own functions, ``flags`` and ``set_flags``, also set the precision of float32.
    """
    torch.backends.cudnn.benchmark = on
