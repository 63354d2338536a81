"""Mutated files, read in a child process with little memory that may write nothing.

Every case is a function of (seed, target, number): a failure prints them.

    SCE_VIDEO_FUZZ_CASES=20000 SCE_VIDEO_FUZZ_SEED=7 pytest -n 0 tests/fuzz
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import resource
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = int(os.environ.get("SCE_VIDEO_FUZZ_SEED", "0"))
CASES = int(os.environ.get("SCE_VIDEO_FUZZ_CASES", "0"))
#: Limits of one case, and memory of the child beyond what it has at its start.
CASE_SECONDS, MEMORY = 5.0, 1 << 30

_WORDS = [
    *(b"0 -1 1e999 NaN null true {} [] \"\" -0 1e308 1e-400 0x10 99999999999999999999".split()),
    str(2**31).encode(), str(2**63).encode(), str(-(2**63) - 1).encode(), b"9" * 400, b"9" * 5000,
    b"\\ud800", b"\xed\xa0\x80", b"\x00", b"\xff\xff\xff\xff", b"\x7f" * 8, b"\x1b[2J",
    b"\xef\xbb\xbf",
    b"\n", b"\t", b" ", b",", b'"', b"{", b"}", b"[", b"]", b"(" * 300, b"[" * 300, b'{"a":' * 300,
    b"%s", b"../../x", b"/", b"O8", b"|O", b"V9", b"<U999999999", b"f16", b"M8[s]",
    (2**31 - 1).to_bytes(4, "little"), (2**62).to_bytes(8, "little"), b"\x00" * 8,
]  # fmt: skip


_FORBIDDEN = frozenset(
    f"os.{name}"
    for name in (
        "system", "exec", "fork", "forkpty", "posix_spawn", "mkdir", "remove", "rename", "rmdir",
        "link", "symlink", "chmod", "truncate", "putenv",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A reader of files of others.

    Attributes:
        name: Of the reader.
        samples: Valid contents of the file.
        read: Reads a file and uses the result; raises ValueError for a content that is refused.
        file_name: Name of the file.
        write: Writes a content; as it is by default.
        cases: Mutations in a normal run of the tests.
        words: More words to insert.
        known: Hostile contents, read after the samples.
    """

    name: str
    samples: Sequence[bytes]
    read: Callable[[Path], Any]
    file_name: str
    write: Callable[[Path, bytes], Any] = Path.write_bytes
    cases: int = 60
    words: Sequence[bytes] = ()
    known: Sequence[bytes] = ()


def mutate(samples: Sequence[bytes], words: Sequence[bytes], rng: random.Random) -> bytes:
    """A sample with one to six changes."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        begin = rng.randrange(len(data) + 1)
        end = min(len(data), begin + rng.choice((0, 1, 1, 2, 4, 8, 30)))
        kind = rng.randrange(7)
        if kind == 0 and begin < len(data):  # flip a bit
            data[begin] ^= 1 << rng.randrange(8)
        elif kind == 1:  # other bytes
            data[begin:end] = rng.randbytes(end - begin)
        elif kind == 2:  # remove, or cut off
            del data[begin : end if rng.random() < 0.7 else None]
        elif kind == 3:  # repeat
            data[begin:begin] = data[begin:end] * rng.choice((1, 2, 50))
        elif kind == 4:  # a part of another sample
            other = rng.choice(samples)
            at = rng.randrange(len(other) + 1)
            data[begin:end] = other[at : at + rng.choice((1, 4, 16, 64))]
        elif kind == 5:  # another number
            digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
            if digits:
                at = rng.choice(digits)
                data[at : at + 1] = rng.choice(words)
        else:
            data[begin:end] = rng.choice(words)
    return bytes(data)


def content(target: Target, seed: int, number: int) -> bytes:
    """The mutated content of a case; the samples and the known contents come first."""
    first = (*target.samples, *target.known)
    if number < len(first):
        return first[number]
    rng = random.Random(zlib.crc32(f"{seed} {target.name} {number}".encode()))
    return mutate(target.samples, [*_WORDS, *target.words], rng)


def run_fuzz(target: Target, folder: Path, seed: int = SEED, cases: int = 0) -> str:
    """Run a target in a child process; the description of the first failure, or "".

    Args:
        target: What is read.
        folder: An empty folder; the file of the failed case stays there.
        seed: Of the mutations.
        cases: Number of cases; by default that of the environment or of the target.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    count = cases or CASES or target.cases
    child = context.Process(target=_child, args=(target, folder, seed, count, sender))
    child.start()
    sender.close()
    last, failure = -1, ""
    try:
        while True:
            if not receiver.poll(20 * CASE_SECONDS):
                failure = "takes more than 100 s"
                break
            number, why = receiver.recv()
            last = number
            if why:
                failure = why
                break
    except EOFError:
        child.join()
        if last < count:
            failure = f"the process ended with status {child.exitcode}"
    finally:
        child.kill()
        child.join()
    if not failure:
        return ""
    where = folder / target.file_name
    return f"{target.name}, seed {seed}, case {last}: {failure} (file: {where})"


def _child(target: Target, folder: Path, seed: int, cases: int, sender: Any) -> None:
    """Send (number, "") before each case, (number, reason) of a failure, (cases, "") at the end."""
    path = folder / target.file_name
    warnings.simplefilter("ignore")
    faulthandler.disable()  # a crash is reported by the parent
    sys.dont_write_bytecode = True  # by imports inside of readers
    os.chdir(folder)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1), os.dup2(null, 2)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    guard = _Guard()
    sys.addaudithook(guard.audit)
    for number in range(cases):
        sender.send((number, ""))
        data = content(target, seed, number)
        target.write(path, data)
        why = _case(target, path, guard, valid=number < len(target.samples))
        if why:
            sender.send((number, why))
            os._exit(1)
    sender.send((cases, ""))
    os._exit(0)


def _case(target: Target, path: Path, guard: _Guard, valid: bool) -> str:
    began = time.process_time()
    with guard:
        try:
            target.read(path)
            error = None
        except BaseException as raised:
            error = raised
    seconds = time.process_time() - began
    if guard.broken:
        return f"does more than reading: {guard.broken}"
    if seconds > CASE_SECONDS:
        return f"takes {seconds:.1f} s"
    if error is None:
        return ""
    if not isinstance(error, ValueError) or isinstance(error, UnicodeError):
        return f"raises {type(error).__name__}: {error!s:.300}"
    if valid:
        return f"refuses a valid file: {error!s:.300}"
    if Path(target.file_name).name not in str(error):
        return f"an error that does not name the file: {error!s:.300}"
    if len(str(error)) > 2000 + 6 * path.stat().st_size:  # a line may be quoted, escaped
        return f"an error of {len(str(error))} characters"
    return ""


class _Guard:
    """Notes what a reader does besides reading, while it is entered."""

    def __init__(self) -> None:
        self.active = False
        self.broken = ""

    def __enter__(self) -> None:
        self.active, self.broken = True, ""

    def __exit__(self, *_: object) -> None:
        self.active = False

    def audit(self, event: str, args: tuple) -> None:
        """Called by Python before every event of this kind."""
        if not self.active or self.broken:
            return
        forbidden = event in _FORBIDDEN or event.split(".")[0] in ("subprocess", "shutil", "socket")
        if event == "open" and not str(args[0]).startswith("/dev/null"):
            mode, flags = args[1] or "", args[2] if isinstance(args[2], int) else 0
            writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            forbidden = bool(set(mode) & set("wax+")) or bool(flags & writes)
        if forbidden:
            self.broken = f"{event} {args!r:.200}"
