"""Self-supervised video representation learning: SCE and the methods it is compared with.

``sce_video.pretrain(videos, out)`` is the command ``sce-video pretrain``.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from sce_video.dependencies import check_dependencies
from sce_video.version import __version__

try:
    check_dependencies()
except ImportError as error:
    # The command sce-video imports this package first: its user wants the sentences alone.
    if Path(sys.argv[0]).name == "sce-video":
        sys.exit(f"sce-video: error: {error}")
    raise

__all__ = ["__version__", "pretrain"]


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: it needs torch and the whole package.
    if name == "pretrain":
        return importlib.import_module("sce_video.apis.automatic").pretrain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
