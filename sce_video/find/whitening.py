"""Whitening: a linear map after which features of an index vary alike in every direction.

The cosine of two features is dominated by the few directions in which all features of a network
vary most. After whitening it counts how unusual a common property is, which no label is needed for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

#: Fewer features say too little of their covariance.
FEWEST_ROWS = 100
#: At most this many features, at equal steps, are taken for the covariance.
_MOST_ROWS = 8192
_TINY = 1e-12


class Rows(Protocol):
    """A matrix of which rows can be read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, D)."""

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Some rows."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """Maps features ``x`` to ``(x - mean) @ matrix``.

    Attributes:
        mean: (D,) float64.
        matrix: (D, D) float64.
    """

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """(..., D) float64 of (..., D)."""
        return (features.astype(np.float64) - self.mean) @ self.matrix


def fit_whitening(features: Rows) -> Whitening:
    """The whitening of the rows of (N, D) features.

    With their covariance C and R = C + tr(C)/D I it is the inverse of the Cholesky factor of R;
    cosines are those of any other square root of the inverse of R. The mean variance is added in
    every direction, since small differences are those of compression and of where a window begins.

    Raises:
        ValueError: A feature holds NaN or infinity.
    """
    count, size = features.shape
    taken = np.unique(np.linspace(0, count - 1, min(count, _MOST_ROWS)).astype(np.int64))
    rows = np.asarray(features[taken], dtype=np.float64)
    mean = rows.mean(axis=0)
    rows -= mean
    covariance = rows.T @ rows / len(rows)
    if not np.isfinite(covariance).all():
        raise ValueError("a feature holds NaN or infinity: build the index from scratch")
    covariance[np.diag_indices(size)] += max(np.trace(covariance) / size, _TINY)
    return Whitening(mean, np.linalg.inv(np.linalg.cholesky(covariance)).T)
