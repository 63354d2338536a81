"""Self-supervised video representation learning: SCE and the methods it is compared with.

``sce_video.pretrain(videos, out)`` is the command ``sce-video pretrain``, and
``sce_video.pretrain_seeds(videos, out, [0, 1, 2])`` the same with ``--seeds 0 1 2``.
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

__all__ = ["__version__", "pretrain", "pretrain_seeds"]


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: it needs torch and the whole package.
    if name in ("pretrain", "pretrain_seeds"):
        return getattr(importlib.import_module("sce_video.apis.automatic"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
