"""The small index that tests of index and search build, and the header of one made by hand."""

from sce_video.inference.embed import ViewOptions

NAMES = ["a.mp4", "b.mp4", "c/d.mp4", "c/e e.mp4", "f.mp4"]
OPTIONS = ViewOptions(num_clips=2)
HEADER = {
    "root": "/videos",
    "checkpoint": {"path": "c.pth", "sha256": "0" * 64},
    "settings": {"model": {}, "num_clips": 1, "num_crops": 1},
}
