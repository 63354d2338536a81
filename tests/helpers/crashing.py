"""A reader that ends its process at files of a given name, as a crash inside a decoder does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from sce_video.datasets.readers import AvReader


def crash_at(names: dict[str, int | signal.Signals]) -> type[AvReader]:
    """A reader that crashes at files with these names.

    Args:
        names: The signal that ends the process at each file, or the status it exits with.
    """
    exits: dict[bool, Callable[[int], None]] = {
        True: lambda number: os.kill(os.getpid(), number),
        False: os._exit,
    }

    class CrashingReader(AvReader):
        def __init__(self, path, **options):
            how = names.get(os.path.basename(path))
            if how is not None:
                exits[isinstance(how, signal.Signals)](how)
            super().__init__(path, **options)

    return CrashingReader
