"""Self-supervised video representation learning with SCE."""

from sce_video.dependencies import check_dependencies
from sce_video.version import __version__

check_dependencies()

__all__ = ["__version__"]
