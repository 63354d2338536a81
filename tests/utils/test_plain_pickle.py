"""Pickles of plain data: accepted content, and content that is refused without running it."""

import collections
import datetime
import os
import pickle
import resource
import struct

import numpy as np
import pytest

from sce_video.utils.plain_pickle import load_plain_pickle

PLAIN = {
    "a": np.arange(6, dtype=np.float64).reshape(2, 3),
    "b": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    "c": np.zeros((0, 5), dtype=np.float16),
    "d": [1, 2.5, None, True, "text", b"bytes", (np.float32(0.25), np.int64(-3))],
    "e": np.arange(8, dtype=np.float32)[::2],
    "f": np.array([True, False]),
    "g": np.array(2.5),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_read(tmp_path, protocol):
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps(PLAIN, protocol=protocol))
    found = load_plain_pickle(path)
    assert list(found) == list(PLAIN) and found["d"] == PLAIN["d"]
    for key in set(PLAIN) - {"d"}:
        assert np.array_equal(found[key], PLAIN[key]) and found[key].dtype.isnative
        assert found[key].shape == PLAIN[key].shape
        assert found[key].dtype == PLAIN[key].dtype.newbyteorder("=")


@pytest.mark.parametrize("core", ["core", "_core"])
def test_arrays_of_old_and_new_numpy(tmp_path, core):
    text = pickle.dumps({"a": np.arange(3.0)}, protocol=2)
    for old in (b"numpy._core.multiarray", b"numpy.core.multiarray"):
        text = text.replace(old, b"numpy.%s.multiarray" % core.encode())
    path = tmp_path / "p.pkl"
    path.write_bytes(text)
    assert load_plain_pickle(path)["a"].tolist() == [0, 1, 2]


def test_arrays_of_python_2(tmp_path):
    """Build a pickle of Python 2 by hand, which stores an array of two f8 as text."""
    raw = struct.pack("<2d", 1.5, -2.0)
    text = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U" + bytes([len(raw)]) + raw + b"tb."
    )
    assert pickle.loads(text, encoding="latin1").tolist() == [1.5, -2.0]
    path = tmp_path / "p.pkl"
    path.write_bytes(text)
    assert load_plain_pickle(path).tolist() == [1.5, -2.0]


class _Evil:
    def __init__(self, function, *arguments):
        self.made = (function, arguments)

    def __reduce__(self):
        return self.made

    def __repr__(self):  # test ids, the same in all processes
        return f"_Evil({self.made[0].__name__})"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (_Evil(os.system, "touch {}"), r"(posix|nt)\.system"),
        (_Evil(eval, "open('{}', 'w')"), r"builtins\.eval"),
        (_Evil(getattr, np, "load"), r"builtins\.getattr"),
        (_Evil(np.load, "{}"), r"numpy\.load"),
        (datetime.date(2020, 1, 1), r"datetime\.date"),
        (collections.OrderedDict(a=1), r"collections\.OrderedDict"),
        (np.array([None, "x"], dtype=object), "does not contain numbers"),
        (np.zeros(2, dtype=[("x", "f4")]), "does not contain numbers"),
        (np.zeros(2, dtype="M8[s]"), "does not contain numbers"),
        (np.array(["text"]), "does not contain numbers"),
        ({1, 2}, "contains a set"),
        (1j, r"builtins\.complex"),
        (_Evil(bytes, 10**12), "malformed bytes"),
        (bytearray(b"x"), r"(builtins\.bytearray|contains a bytearray)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_other_objects_are_refused(tmp_path, value, wanted, protocol):
    path, mark = tmp_path / "p.pkl", tmp_path / "mark"
    if isinstance(value, _Evil):
        function, arguments = value.made
        value = _Evil(function, *(a.format(mark) if isinstance(a, str) else a for a in arguments))
        if arguments[0] is np:
            value = _Evil(function, 1, "real")
    if isinstance(value, set) and protocol < 4:
        wanted = r"(builtins|__builtin__)\.set"
    wanted = wanted.replace("builtins", "(builtins|__builtin__)")
    path.write_bytes(pickle.dumps({"film,0902": value}, protocol=protocol))
    with pytest.raises(ValueError, match=rf"p\.pkl is not a pickle of plain data: .*{wanted}"):
        load_plain_pickle(path)
    assert not mark.exists()


def _malformed():
    """Test pickles that contain only allowed names, but in a wrong combination."""
    good = pickle.dumps(np.arange(4.0), protocol=2)
    yield "more rows than bytes", good.replace(b"K\x04\x85", b"K\x05\x85")
    yield "a negative side", good.replace(b"K\x04\x85", b"J\xff\xff\xff\xff\x85")
    yield "an object type", good.replace(b"f8", b"O8")
    yield "a record's state", good.replace(b"<q", b"[q")
    yield "cut short", good[:-20]
    yield "no pickle", b"film,0902,0.1,0.2,0.3,0.4,,0.9\n"
    yield "empty", b""
    yield "an array never filled", b"cnumpy._core.multiarray\n_reconstruct\n(tR."
    yield "the class of arrays called", b"cnumpy\nndarray\n(K\x04tR."
    yield "a made-up instance", b"cnumpy\nndarray\n)\x81."
    yield "a persistent id", b"Pname\n."
    yield "an extension", b"\x82\x01."
    yield "an attribute of a name", b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tobytes\x93."
    yield "an instance opcode", b"(inumpy\nndarray\n."
    yield "a state for a function", b"cnumpy\nndarray\n}b."
    yield "bytes in another code", b"c_codecs\nencode\n(Vabc\nVrot13\ntR."
    yield "a number type from nowhere", b"cnumpy\ndtype\n(K\x01tR."


@pytest.mark.parametrize(("what", "text"), _malformed(), ids=[what for what, _ in _malformed()])
def test_malformed_pickles_are_refused(tmp_path, what, text):
    path = tmp_path / "p.pkl"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=r"p\.pkl is not a pickle of plain data: ."):
        load_plain_pickle(path)


def test_damaged_pickles_never_do_more_than_raise(tmp_path):
    good = pickle.dumps({"film,0902": np.arange(10.0).reshape(2, 5), "x": [1, "y"]}, protocol=4)
    rng = np.random.default_rng(0)
    path = tmp_path / "p.pkl"
    read = 0
    for _ in range(300):
        text = bytearray(good)
        for index in rng.integers(0, len(text), 3):
            text[index] = rng.integers(0, 256)
        path.write_bytes(text)
        try:
            load_plain_pickle(path)
            read += 1
        except ValueError as error:
            assert str(path) in str(error)
    assert 0 < read < 300  # numbers in the arrays may change


def doubled(depth):
    """Return a pickle of nested tuples that stand for 2**depth numbers."""
    pairs = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x94" for i in range(depth))
    return b"K\x01\x94" + pairs


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\x80\x02]r" + struct.pack("<I", 2**28) + b".", None),  # a slot of the memo: 4 GB
        (b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b"a.", "truncated|MemoryError"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**33) + b"a.", "truncated|MemoryError"),
        (b"\x80\x04}" + doubled(40) + b"K\x01s.", "a key that is neither text nor a number"),
        (b"\x80\x04}(" + doubled(40) + b"K\x01u.", "a key that is neither text nor a number"),
        (b"\x80\x04" + doubled(40) + b".", None),
        (b"\x80\x02" + b"(" * 10**5 + b"t" * 10**5 + b".", "recursion"),
        (b"\x80\x04\x8f(K\x01\x90.", "contains a set"),
        (b"c_codecs\nencode\n(NK\x01tb.", "a state that does not belong to an array"),
        (b"L" + b"9" * 10**5 + b"L\n.", "limit"),
    ],
)
def test_small_pickles_take_little_time_and_memory(tmp_path, text, reason):
    (tmp_path / "p.pkl").write_bytes(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if reason is None:
        load_plain_pickle(tmp_path / "p.pkl")
    else:
        message = rf"p\.pkl is not a pickle of plain data: .*({reason})"
        with pytest.raises(ValueError, match=message):
            load_plain_pickle(tmp_path / "p.pkl")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
