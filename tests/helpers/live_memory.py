"""Bytes of the tensors that exist at the same time."""

from __future__ import annotations

import weakref
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Counts the memory of tensors that operations in the block return, while they exist.

    Attributes:
        peak: Most bytes at a time, without the memory of the tensors given to the constructor.
    """

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.peak = self._bytes = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._tensors: Counter[int] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor)
        return results

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if key in self._known:
            return
        if not self._tensors[key]:
            self._bytes += size
            self.peak = max(self.peak, self._bytes)
        self._tensors[key] += 1
        weakref.finalize(tensor, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._tensors[key] -= 1
        if not self._tensors[key]:
            self._bytes -= size
