"""Re-encoding a data set for random access: see ``tools/data/repack.py``."""

from sce_video.data_tools.repack.plan import Plan, make_plan
from sce_video.data_tools.repack.run import Options, Result, StorageError, merge, repack
from sce_video.data_tools.repack.settings import Settings

__all__ = [
    "Options",
    "Plan",
    "Result",
    "Settings",
    "StorageError",
    "make_plan",
    "merge",
    "repack",
]
