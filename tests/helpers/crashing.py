"""A reader that ends its process at files of a given name, as a crash inside a decoder does."""

from __future__ import annotations

import os
import signal
import time

from sce_video.datasets.readers import AvReader


def crash_at(names: dict[str, int | signal.Signals]) -> type[AvReader]:
    """A reader that crashes at files with these names.

    Args:
        names: The signal that ends the process at each file, or the status it exits with.
    """

    class CrashingReader(AvReader):
        def __init__(self, path, **options):
            how = names.get(os.path.basename(path))
            if isinstance(how, signal.Signals):
                os.kill(os.getpid(), how)
                time.sleep(10)  # the signal may go to another thread
            elif how is not None:
                os._exit(how)
            super().__init__(path, **options)

    return CrashingReader
