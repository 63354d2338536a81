"""Counting how often a piece of code makes the host wait for the device.

A host that waits cannot queue the next kernels, and a GPU without kernels idles. On a GPU torch
itself reports such calls (``torch.cuda.set_sync_debug_mode``). On a CPU nothing waits, so that
tensors that would be on the device are followed: parameters and buffers to begin with, and whatever
is computed from them or copied to their device.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import sce_video

_PACKAGE = Path(sce_video.__file__).parent
_TORCH = Path(torch.__file__).parent
#: Operations whose result, or its size, is read by the host. All of ``item()``, ``bool()``,
#: ``float()``, ``int()`` and ``if tensor:`` are ``_local_scalar_dense``; decompositions read the
#: error code of the solver.
_WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "bincount",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
    "_linalg_eigh",
    "_linalg_svd",
    "_linalg_slogdet",
    "_linalg_solve_ex",
    "linalg_eig",
    "linalg_eigvals",
    "linalg_lstsq",
    "_linalg_check_errors",
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
#: Methods that copy to the host; on a CPU they do nothing that an operation would show.
_READS = {"cpu", "tolist", "numpy", "__array__"}


def host_waits(tensors: Iterable[Tensor]) -> Any:
    """A context that counts the host's waits; it gives a Counter of call sites.

    A call site is ``file:line operation``, the innermost line of this package, else of the caller.
    On a GPU what torch reports is counted, which includes copies from memory that is not pinned.

    Args:
        tensors: Parameters and buffers of the network; their device decides how waits are found.
    """
    tensors = list(tensors)
    if any(tensor.device.type == "cuda" for tensor in tensors):
        return _reported_by_cuda()
    return _followed(tensors)


@contextmanager
def _reported_by_cuda() -> Iterator[Counter[str]]:
    found: Counter[str] = Counter()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Any, category: Any, *rest: Any) -> None:
            if "synchronizing CUDA operation" in str(message):
                found[_call_site("synchronises")] += 1
            else:
                show(message, category, *rest)

        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _followed(tensors: list[Tensor]) -> Iterator[Counter[str]]:
    found: Counter[str] = Counter()
    storages = _DeviceStorages()
    for tensor in tensors:
        storages.add(tensor)
    with _Calls(storages, found), _Operations(storages, found):
        yield found


class _DeviceStorages:
    """The memory that would be on the device; a storage that is freed does not pass its mark on."""

    def __init__(self) -> None:
        self._references: dict[int, StorageWeakRef] = {}

    def add(self, tensor: Tensor) -> None:
        if tensor.layout == torch.strided:
            # The reference keeps the address from being used again.
            reference = StorageWeakRef(tensor.untyped_storage())
            self._references.setdefault(reference.cdata, reference)

    def __contains__(self, tensor: object) -> bool:
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            return False
        return StorageWeakRef(tensor.untyped_storage()).cdata in self._references

    def has_any(self, tree: Any) -> bool:
        return any(leaf in self for leaf in tree_leaves(tree))

    def add_all(self, tree: Any) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor):
                self.add(leaf)


class _Operations(TorchDispatchMode):
    """Passes the mark from inputs to outputs, and counts operations that wait."""

    def __init__(self, storages: _DeviceStorages, found: Counter[str]) -> None:
        super().__init__()
        self.storages, self.found = storages, found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_device = self.storages.has_any((args, kwargs))
        name = func.overloadpacket.__name__
        if on_device and (name in _WAITING or (name in _INDEXING and _has_mask(args))):
            self.found[_call_site(name)] += 1
        result = func(*args, **kwargs)
        if on_device:
            self.storages.add_all(result)
        return result


class _Calls(TorchFunctionMode):
    """Counts copies between host and device, which on a CPU are no operations."""

    def __init__(self, storages: _DeviceStorages, found: Counter[str]) -> None:
        super().__init__()
        self.storages, self.found = storages, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        on_device = bool(args) and args[0] in self.storages
        if on_device and (name in _READS or (name == "to" and "cpu" in args[1:])):
            self.found[_call_site(name)] += 1
            if name in ("cpu", "to"):  # the copy is of the host
                with _disable_current_modes():
                    return args[0].clone()
        # A number or a list becomes a tensor on the host and is copied at once.
        makes = name == "new_tensor" and on_device
        makes |= name in ("tensor", "as_tensor") and _names_device((), kwargs)
        makes &= not (name == "as_tensor" and args[0] in self.storages)
        result = func(*args, **kwargs)
        if makes or (name == "to" and not on_device and _names_device(args[1:], kwargs)):
            if not kwargs.get("non_blocking"):
                self.found[_call_site(f"{name}, host to device")] += 1
            self.storages.add_all(result)
        return result


def _names_device(args: Any, kwargs: Any) -> bool:
    return any(isinstance(value, torch.device) for value in (*args, kwargs.get("device")))


def _has_mask(args: Any) -> bool:
    """Whether an index is boolean, and its number of elements decides the size of the result."""
    indices = args[1] if len(args) > 1 else ()
    masked = any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices
    )
    # `x[mask] = number` is a masked_fill.
    return masked and not (len(args) > 2 and isinstance(args[2], Tensor) and args[2].numel() == 1)


def _call_site(operation: str) -> str:
    """The innermost line of this package, else of what is neither this file nor torch."""
    frames = [
        frame
        for frame in reversed(traceback.extract_stack())
        if frame.filename != __file__ and _TORCH not in Path(frame.filename).parents
    ]
    own = (frame for frame in frames if _PACKAGE in Path(frame.filename).parents)
    frame = next(own, frames[0] if frames else None)
    if frame is None:
        return operation
    path = Path(frame.filename)
    name = path.relative_to(_PACKAGE.parent) if _PACKAGE in path.parents else path.name
    return f"{name}:{frame.lineno} {operation}"
