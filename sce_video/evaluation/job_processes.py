"""Processes of batch jobs that run a network: imports, threads, device, time limit."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterable

import cv2
import torch

from sce_video.jobs import Record

#: Seconds for the forward passes of an item, besides the time limit for decoding it.
_FORWARD_SECONDS = 600.0
_NO_LIMIT = 1e6  # seconds, which timers of all systems accept


def time_limit(decoding: float | None) -> float:
    """Seconds that an item may take, of which ``decoding`` for its files; None for no limit."""
    return _NO_LIMIT if decoding is None else decoding + _FORWARD_SECONDS


def modules_of(parts: Iterable[object]) -> list[str]:
    """The modules that define the classes of some objects, and register them when imported."""
    names = {type(part).__module__ for part in parts}
    return sorted(name for name in names if not name.startswith(("__", "builtins", "torch.")))


def prepare_process(modules: Iterable[str]) -> None:
    """Import modules, and compute with one thread, in a process of its own.

    A sum over a whole tensor depends on the number of threads, and a feature must not.
    """
    for name in modules:
        importlib.import_module(name)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)


def device_of_process(device: str) -> torch.device:
    """The device of this process: ``cuda`` without a number spreads the processes over all."""
    if device != "cuda":
        return torch.device(device)
    number = getattr(multiprocessing.current_process(), "_identity", ()) or (0,)  # 1, 2, ...
    return torch.device("cuda", number[-1] % max(1, torch.cuda.device_count()))


def failure_of(record: Record) -> str:
    """Why a file has no feature, for the lists of unreadable files."""
    if record.kind == "crash":
        return f"crashed the process that was reading it ({record.reason})"
    return record.reason


def explain_network_error(error: Exception, files: str) -> str:
    """Why a network fails, for the error that ends a run."""
    text = str(error).partition("\n")[0]
    if isinstance(error, torch.OutOfMemoryError):
        return f"the GPU's memory is full ({text}): take fewer --workers"
    return text if isinstance(error, ValueError) else f"the network fails for {files}: {text}"
