"""The part of a work that one of several machines does."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

_SHARD = re.compile(r"(\d+)/(\d+)")
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One of ``count`` parts of files or steps, each of which belongs to one part.

    Attributes:
        number: From 1.
        count: Number of parts.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse ``i/n`` with 1 <= i <= n; ValueError for anything else."""
        match = _SHARD.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"--shard must be i/n with i from 1 to n, such as 2/4, got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def holds(self, path: str) -> bool:
        """Whether a file, by its path in the output folder, belongs to this part.

        The path alone decides, so that machines with other lists of files agree.
        """
        return zlib.crc32(os.fsencode(path)) % self.count == self.number - 1

    def part(self, items: Sequence[T]) -> Sequence[T]:
        """Every ``count``-th item of a sequence; empty if there are too few."""
        return items[self.number - 1 :: self.count]

    @property
    def suffix(self) -> str:
        """Suffix of file names; empty if there is one part only."""
        return f".shard-{self.number}-of-{self.count}" if self.count > 1 else ""
