"""The small index that tests of index and search build, and the header of one made by hand."""

from sce_video.find.store import IndexHeader
from sce_video.inference.embed import ViewOptions

NAMES = ["a.mp4", "b.mp4", "c/d.mp4", "c/e e.mp4", "f.mp4"]
OPTIONS = ViewOptions(num_clips=2)
HEADER = IndexHeader("/videos", "c.pth", "0" * 64, model={}, num_clips=1, num_crops=1)
