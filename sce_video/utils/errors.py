"""Base classes of errors that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """An error in settings, files or the machine, whose message says what to do."""


class MissingPackageError(UserError, ImportError):
    """An optional package is needed and cannot be imported."""
