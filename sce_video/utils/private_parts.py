"""The only assignments to private attributes of torch and mmengine.

Each exists because torch or mmengine has no public way, as its function explains. They were tested
with torch 2.13.0 and mmengine 0.10.7. ``tests/test_structure.py`` refuses any others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmengine.optim import OptimWrapper
    from mmengine.runner import BaseLoop
    from torch.utils.data import DataLoader


def end_persistent_workers(loader: DataLoader) -> None:
    """End the persistent workers of a loader; its next iterator starts new ones.

    torch ends them when their iterator is deleted, which the loader keeps, and has no function for
    it. Left to the garbage collector each worker delays the end of the program by seconds.
    """
    loader._iterator = None


def set_accumulation(optimizer: OptimWrapper, count: int) -> None:
    """Set the number of micro-batches per step of an optimiser wrapper that is in use.

    mmengine accepts the number in the constructor only. A resumed training learns it after hooks
    and schedulers have been given the wrapper.
    """
    optimizer._accumulative_counts = count


def set_progress(loop: BaseLoop, epoch: int, iteration: int) -> None:
    """Set the epoch and the iteration at which a training loop continues.

    mmengine's loops have read-only properties for both, and its ``Runner.resume`` assigns the same
    attributes.
    """
    loop._epoch = epoch
    loop._iter = iteration
