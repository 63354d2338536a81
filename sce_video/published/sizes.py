"""The published number of samples of a data set, and which other numbers still count as it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedSize:
    """Number of samples or images of a set.

    Attributes:
        low: The published number; with ``high`` a range, since copies of some sets differ.
        high: See ``low``.
        least: A result on fewer of them does not count as one on this set.
        most: A result on more of them does not count either.
        classes: Number of classes; None where they have no single class.
    """

    low: int
    high: int
    least: int
    most: int
    classes: int | None = None

    @classmethod
    def exactly(cls, samples: int, classes: int | None = None) -> PublishedSize:
        """A set whose copies are all the same; up to 1 % may be missing."""
        return cls(samples, samples, samples - samples // 100, samples, classes)

    def published(self) -> str:
        """The published number, or range, as text."""
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"

    def contains(self, samples: int) -> bool:
        """Whether so many may be a copy of the set."""
        return self.least <= samples <= self.most
