"""Reading of pickles of plain data without calling anything that the file names.

A pickle is a program that can call any importable function. Here, a stand-in of this module takes
the place of each permitted name. While the file is read, a stand-in only *records* plain arguments
(shapes, number types, raw bytes) and does not build a numpy object. With an object dtype,
``numpy.ndarray`` over bytes would let the file forge Python objects, and numpy's ``__setstate__``
trusts its arguments. :func:`convert` then checks every dtype, shape and length, and turns the
records into arrays. Torch files are read with the same stand-ins
(:mod:`sce_video.engine.checkpoint`).
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sce_video.utils.files import regular_file

_KINDS = frozenset("fiub")  # floats, integers and bools only: no objects, records or dates
_BYTE_ORDERS = ("<", ">", "|", "=")
_MAX_DIMENSIONS = 32  # numpy 1 allows no more


def _text(value: object) -> object:
    """Decode byte strings, which Python 2 used for text, and return other values unchanged."""
    return value.decode("latin1") if isinstance(value, bytes) else value


class DtypeRecord:
    """Stand-in for ``numpy.dtype(spec, align, copy)`` and its state."""

    def __init__(self, spec: object = None, *_: object) -> None:
        self._spec = _text(spec)
        self._order: object = "="

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or state[2:5] != (None, None, None):
            raise pickle.UnpicklingError("an array that does not contain numbers")
        self._order = _text(state[1])

    def dtype(self) -> np.dtype:
        """Return the dtype, or raise UnpicklingError unless it is a valid dtype of numbers."""
        if not isinstance(self._spec, str) or not 0 < len(self._spec) <= 4:
            raise pickle.UnpicklingError("an array that does not contain numbers")
        try:
            dtype = np.dtype(self._spec)
        except (TypeError, ValueError):
            raise pickle.UnpicklingError(f"{self._spec!r} is not a dtype of numbers") from None
        if dtype.kind not in _KINDS or dtype.itemsize > 16 or self._order not in _BYTE_ORDERS:
            raise pickle.UnpicklingError("an array that does not contain numbers")
        return dtype.newbyteorder(str(self._order))  # type: ignore[arg-type]


class ArrayRecord:
    """Stand-in for an array, which records its bytes, dtype, shape and order.

    It takes no arguments, because pickled arrays only pass the class to ``_reconstruct``.
    """

    def __init__(self) -> None:
        self._parts: tuple[Any, ...] | None = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 4:
            raise pickle.UnpicklingError("a malformed array")
        shape, dtype, fortran, raw = state[-4:]
        self._parts = (raw, dtype, shape, "F" if fortran is True or fortran == 1 else "C")

    @classmethod
    def of(cls, raw: object, dtype: object, shape: object, order: object) -> ArrayRecord:
        """Make a record from the components of an array."""
        record = cls()
        if order not in ("C", "F"):
            raise pickle.UnpicklingError("a malformed array")
        record.__setstate__((shape, dtype, order == "F", raw))
        return record

    def array(self) -> np.ndarray:
        """Copy the recorded bytes to an array in this machine's byte order.

        Raises:
            pickle.UnpicklingError: If bytes, dtype and shape do not match.
        """
        if self._parts is None:
            raise pickle.UnpicklingError("a malformed array")
        raw, dtype, shape, order = self._parts
        if isinstance(raw, str):  # Python 2 wrote it
            raw = raw.encode("latin1")
        if type(dtype) is not DtypeRecord:
            raise pickle.UnpicklingError("a malformed array")
        real = dtype.dtype()
        plain_shape = (
            isinstance(shape, tuple)
            and len(shape) <= _MAX_DIMENSIONS
            and all(type(n) is int and 0 <= n < 2**48 for n in shape)
        )
        if not isinstance(raw, bytes | bytearray) or not plain_shape:
            raise pickle.UnpicklingError("a malformed array")
        if math.prod(shape) * real.itemsize != len(raw):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(raw)} bytes")
        return (
            np.frombuffer(raw, dtype=real)
            .astype(real.newbyteorder("="))
            .reshape(shape, order=order)
        )


def _scalar(dtype: object, raw: object) -> float | int | bool:
    return ArrayRecord.of(raw, dtype, (1,), "C").array()[0].item()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Stand in for ``_codecs.encode``, with which old pickle protocols store bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("malformed bytes")
    return text.encode("latin1")


def _no_bytes(*given: object) -> bytes:
    """Stand in for ``bytes()``, with which old pickle protocols store empty bytes."""
    if given:
        raise pickle.UnpicklingError("malformed bytes")
    return b""


#: Stand-ins for numpy's names in a pickle. The module is called ``core`` in numpy 1 and ``_core``
#: in numpy 2.
NUMPY_STAND_INS: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": ArrayRecord,
    "numpy.dtype": DtypeRecord,
    **{
        f"numpy.{core}.{name}": stand_in
        for core in ("core", "_core")
        for name, stand_in in (
            ("multiarray._reconstruct", lambda *_: ArrayRecord()),
            ("multiarray.scalar", _scalar),
            ("numeric._frombuffer", ArrayRecord.of),
        )
    },
}
_NAMES: dict[str, Callable[..., Any]] = {
    **NUMPY_STAND_INS,
    "_codecs.encode": _encode,
    "builtins.bytes": _no_bytes,
    "__builtin__.bytes": _no_bytes,
}


class _PlainUnpickler(pickle._Unpickler):
    """Unpickler based on the Python code of :mod:`pickle`, which is half as fast as the C code."""

    # The C code is not used, because it allocates as much memory as a file requests before it reads
    # any data. For example, 9 bytes that name slot 2**28 of the memo take 4 GB.

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        if full_name not in _NAMES:
            raise pickle.UnpicklingError(f"it names {full_name}")
        return _NAMES[full_name]

    def load_build(self) -> None:  # a function also has attributes, so refuse its state
        if not isinstance(self.stack[-2], DtypeRecord | ArrayRecord):  # type: ignore[attr-defined]
            raise pickle.UnpicklingError("a state that does not belong to an array")
        super().load_build()  # type: ignore[misc]

    # Check the keys before they are hashed, because hashing nested tuples may take very long.
    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])  # type: ignore[attr-defined]
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])  # type: ignore[attr-defined]
        super().load_setitems()  # type: ignore[misc]

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])  # type: ignore[attr-defined]
        super().load_dict()  # type: ignore[misc]

    def load_set(self) -> None:  # raise an error before any item is hashed
        raise pickle.UnpicklingError("it contains a set")

    def load_bytearray8(self) -> None:  # unlike pickle's method, this reads before it allocates
        self.load_binbytes8()  # type: ignore[attr-defined]
        self.stack.append(bytearray(self.stack.pop()))  # type: ignore[attr-defined]

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.EMPTY_SET[0]] = dispatch[pickle.FROZENSET[0]] = load_set


def _check_keys(keys: Sequence[object]) -> None:
    if not all(isinstance(key, str | bytes | int | float | None) for key in keys):
        raise pickle.UnpicklingError("a key that is neither text nor a number")


def load_plain_pickle(path: Path) -> Any:
    """Read a pickle of dicts, lists, tuples, text, numbers and numpy arrays of numbers.

    Objects to which the file refers several times are shared, so the size of the file limits the
    memory of the result. Walking through the result may still take any amount of time.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file contains other data, or is not a pickle.
    """
    with open(path, "rb", opener=regular_file) as file:
        try:
            return convert(_PlainUnpickler(file, encoding="latin1").load(), _check_plain)
        except Exception as error:  # a damaged pickle may raise any error
            reason = str(error)[:200] or type(error).__name__
            reason = "it is truncated" if isinstance(error, EOFError) else reason
            raise ValueError(
                f"{path} is not a pickle of plain data: {reason}. Only dicts, lists, text, numbers "
                "and numpy arrays of numbers are read. No code is run"
            ) from error


def _check_plain(value: Any) -> Any:
    if isinstance(value, str | bytes | int | float | None):
        return value
    raise pickle.UnpicklingError(f"it contains a {type(value).__name__}")


def convert(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Replace records in dicts, lists and tuples by arrays, and apply ``leaf`` to other values.

    Dicts and lists are changed in place. Shared objects stay shared, so a small file that refers to
    one list a million times is not expanded.

    Raises:
        pickle.UnpicklingError: If a record is not a valid array of numbers, or if it is a dict key.
    """
    done: dict[int, Any] = {}
    kept = []  # keep visited objects alive, because Python reuses freed ids

    def visit(node: Any) -> Any:
        if id(node) in done:
            return done[id(node)]
        kept.append(node)
        if isinstance(node, dict):
            done[id(node)] = node
            for key in list(node):
                if visit(key) is not key:
                    raise pickle.UnpicklingError("an array as a key")
                node[key] = visit(node[key])
            return node
        if isinstance(node, list):
            done[id(node)] = node
            node[:] = [visit(item) for item in node]
            return node
        if isinstance(node, tuple):
            items = [visit(item) for item in node]
            same = all(new is old for new, old in zip(items, node, strict=True))
            done[id(node)] = node if same else type(node)(items)
        elif isinstance(node, ArrayRecord):
            done[id(node)] = node.array()
        elif isinstance(node, DtypeRecord):
            raise pickle.UnpicklingError("a dtype without an array")
        else:
            done[id(node)] = leaf(node)
        return done[id(node)]

    return visit(value)
