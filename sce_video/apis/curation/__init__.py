"""Know a set of videos before training on it: near-duplicates, outliers, clusters, a subset."""

from sce_video.apis.curation.curate import CurateOptions, Curation, curate
from sce_video.apis.curation.write import write_curation

__all__ = ["CurateOptions", "Curation", "curate", "write_curation"]
