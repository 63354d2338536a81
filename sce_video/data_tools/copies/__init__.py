"""Which videos show the same frames: encoded again, resized, cropped or trimmed."""

from sce_video.data_tools.copies.comparison import (
    ComparedPair,
    ThumbnailFile,
    compare_pairs,
    read_all,
)
from sce_video.data_tools.copies.matching import (
    Alignment,
    CopyMatcher,
    index_vectors,
    query_vectors,
)
from sce_video.data_tools.copies.refinement import refined
from sce_video.data_tools.copies.thumbnails import Thumbnails, read_thumbnail, read_thumbnails

__all__ = [
    "Alignment",
    "ComparedPair",
    "CopyMatcher",
    "ThumbnailFile",
    "Thumbnails",
    "compare_pairs",
    "index_vectors",
    "query_vectors",
    "read_all",
    "read_thumbnail",
    "read_thumbnails",
    "refined",
]
