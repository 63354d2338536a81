"""scikit-learn, imported when a protocol that is defined by it is computed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sce_video.utils.errors import MissingPackageError


def logistic_regression(max_iter: int) -> Any:
    """An unfitted ``LogisticRegression(solver="lbfgs", warm_start=True)``.

    Raises:
        MissingPackageError: scikit-learn cannot be imported.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise _missing(error) from error
    return LogisticRegression(solver="lbfgs", warm_start=True, max_iter=max_iter)


def linear_svm(cost: float) -> Any:
    """An unfitted ``LinearSVC`` with the arguments of salesforce/PCL, ``eval_svm_voc.py``.

    Positives (1) weigh twice as much as negatives (-1).

    Raises:
        MissingPackageError: scikit-learn cannot be imported.
    """
    try:
        from sklearn.svm import LinearSVC
    except ImportError as error:
        raise _missing(error) from error
    return LinearSVC(
        C=cost,
        class_weight={1: 2, -1: 1},
        intercept_scaling=1.0,
        penalty="l2",
        loss="squared_hinge",
        tol=1e-4,
        dual=True,
        max_iter=2000,
        random_state=0,
    )


def _missing(error: ImportError) -> MissingPackageError:
    return MissingPackageError(
        f"the transfer protocols are those of scikit-learn, which cannot be imported ({error}): "
        "pip install -c requirements/constraints.txt -e '.[transfer]'"
    )


@contextmanager
def convergence_is_not_expected() -> Iterator[None]:
    """Silence scikit-learn's warning that the given number of iterations was not enough."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(converge|TOTAL NO. OF|ITERATIONS REACHED).*")
        yield


def check_matrix(features: np.ndarray, labels: np.ndarray, name: str) -> None:
    """Raise ValueError unless features are a finite matrix (N, D) with N >= 1 rows of labels."""
    if features.ndim != 2 or len(features) != len(labels) or len(features) == 0:
        raise ValueError(
            f"{name}: features {features.shape} and labels {labels.shape} must be (N, D) and "
            "(N, ...) with one row or more"
        )
    if not np.isfinite(features).all():
        raise ValueError(f"{name}: some features are not finite")
