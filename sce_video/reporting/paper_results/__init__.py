"""The numbers of the paper that the recipes of this repository reproduce, as plain data.

Every number was copied from a table of the paper (SCE for image and video representation
learning, journal version); ``table`` is the table's label in the LaTeX source, ``row`` its row.
"""

from sce_video.reporting.paper_results.images import IMAGE_RESULTS, MEAN_OF_SETS
from sce_video.reporting.paper_results.paper_result import MEAN_OF_SPLITS, PaperResult
from sce_video.reporting.paper_results.video import DEFAULT_VIEWS, PAPER_RESULTS, TEST_CROP, VIEWS

__all__ = [
    "DEFAULT_VIEWS",
    "IMAGE_RESULTS",
    "MEAN_OF_SETS",
    "MEAN_OF_SPLITS",
    "PAPER_RESULTS",
    "TEST_CROP",
    "VIEWS",
    "PaperResult",
]
