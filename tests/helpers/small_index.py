"""Names and options of the small index that tests of index and search build."""

from sce_video.inference.embed import EmbedOptions

NAMES = ["a.mp4", "b.mp4", "c/d.mp4", "c/e e.mp4", "f.mp4"]
OPTIONS = EmbedOptions(num_clips=2)
