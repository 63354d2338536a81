"""Re-encoding a data set for random access: see ``sce-video repack``."""

from typing import TYPE_CHECKING

from sce_video.utils.imports import lazy_names

if TYPE_CHECKING:
    from sce_video.data_tools.repack.plan import (
        RepackOptions,
        RepackPlan,
        Settings,
        make_plan,
        plan_segments,
    )
    from sce_video.data_tools.repack.run import repack
    from sce_video.data_tools.repack.to_table import repack_to_table
    from sce_video.jobs import StorageError

__all__ = [
    "RepackOptions",
    "RepackPlan",
    "Settings",
    "StorageError",
    "make_plan",
    "plan_segments",
    "repack",
    "repack_to_table",
]

__getattr__ = lazy_names(__name__, __file__)
