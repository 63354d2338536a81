"""Reading pickles of plain data: no class of a foreign file is ever called.

A pickle is a program that can call anything importable. Here every name it may use is one of this
module's: numpy's arrays are built by stand-ins that take nothing but shapes, number types and raw
bytes (numpy's own ``__setstate__`` trusts what it is given), and any other name is an error.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_KINDS = frozenset("fiub")  # floats, integers, bools: no objects, no records, no dates


class _Dtype:
    """Stands in for ``numpy.dtype(spec, align, copy)`` and its state."""

    def __init__(self, spec: object, *_: object) -> None:
        if isinstance(spec, bytes):
            spec = spec.decode("ascii", "replace")
        self.dtype = np.dtype(spec) if isinstance(spec, str) and len(spec) <= 4 else None
        self._check()

    def _check(self) -> None:
        if self.dtype is None or self.dtype.kind not in _KINDS:
            raise pickle.UnpicklingError("an array of something else than numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, base, names, fields = state[:5]
        if isinstance(order, bytes):
            order = order.decode("ascii", "replace")
        if order not in ("<", ">", "|", "=") or (base, names, fields) != (None, None, None):
            raise pickle.UnpicklingError("an array of something else than numbers")
        if self.dtype is not None:
            self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Stands in for an array between its making and its filling."""

    array: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, fortran, raw = state[-4:]
        self.array = _filled(raw, dtype, shape, "F" if fortran else "C")


def _filled(raw: object, dtype: object, shape: object, order: object) -> np.ndarray:
    """An array of raw bytes: a copy, in this machine's byte order.

    Raises:
        pickle.UnpicklingError: The parts do not fit each other.
    """
    if isinstance(raw, str):  # written by Python 2
        raw = raw.encode("latin1")
    whole = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)
    fits = isinstance(raw, bytes | bytearray) and isinstance(dtype, _Dtype) and whole
    if not fits or order not in ("C", "F"):
        raise pickle.UnpicklingError("a malformed array")
    assert isinstance(raw, bytes | bytearray) and isinstance(dtype, _Dtype)
    assert isinstance(shape, tuple) and dtype.dtype is not None
    if math.prod(shape) * dtype.dtype.itemsize != len(raw):
        raise pickle.UnpicklingError(f"an array of shape {shape} with {len(raw)} bytes")
    flat = np.frombuffer(raw, dtype=dtype.dtype).astype(dtype.dtype.newbyteorder("="))
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _frombuffer(raw: object, dtype: object, shape: object, order: object) -> _Array:
    made = _Array()
    made.array = _filled(raw, dtype, shape, order)
    return made


def _scalar(dtype: object, raw: object) -> float | int:
    return _filled(raw, dtype, (1,), "C")[0].item()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """How Python 3 writes bytes in old protocols."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("malformed bytes")
    return text.encode("latin1")


def _no_bytes(*given: object) -> bytes:
    """How Python 3 writes empty bytes in old protocols: ``bytes()``."""
    if given:
        raise pickle.UnpicklingError("malformed bytes")
    return b""


def _not_called(*_: object) -> None:
    """Stands in for ``numpy.ndarray``, which is passed on and never called."""
    raise pickle.UnpicklingError("a malformed array")


_NAMES: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _not_called,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("builtins", "bytes"): _no_bytes,
    ("__builtin__", "bytes"): _no_bytes,
    **{
        (f"numpy.{core}.{module}", name): function
        for core in ("core", "_core")  # before numpy 2, and since
        for module, name, function in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _frombuffer),
        )
    },
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it wants {module}.{name}")
        return _NAMES[module, name]


def load_plain_pickle(path: Path) -> Any:
    """Read a pickle of dicts, lists, tuples, text, numbers and numpy arrays of numbers.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds anything else, or is no pickle; names the file and what it wanted.
    """
    with open(path, "rb") as file:
        try:
            return _unwrap(_PlainUnpickler(file, encoding="latin1").load())
        except Exception as error:  # a damaged pickle can raise anything
            raise ValueError(
                f"{path} is no pickle of plain data: {error or type(error).__name__}. Only dicts, "
                "lists, text, numbers and numpy arrays of numbers are read, nothing is run"
            ) from error


def _unwrap(value: Any) -> Any:
    """Arrays in place of their stand-ins."""
    if isinstance(value, _Array):
        if value.array is None:
            raise pickle.UnpicklingError("a malformed array")
        return value.array
    if isinstance(value, dict):
        return {key: _unwrap(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_unwrap(item) for item in value)
    if isinstance(value, str | bytes | int | float | None):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
