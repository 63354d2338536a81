"""``sce-video export``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sce_video.options.connect import ExportOptions
from sce_video.utils.command import command, printable, shown_failures

if TYPE_CHECKING:
    from sce_video.interop.export.networks import NetworkReport
    from sce_video.interop.export.viewers import VideosReport

#: Next step to suggest after an export, by format
_NEXT = {
    "pretrained": "sce-video embed VIDEOS --checkpoint {out} --out features.npz",
    "onnx": "python examples/onnx_features.py {out} VIDEO",
    "program": "in Python, torch.export.load({out}).module()(clips)",
    "parquet": "embedding-atlas {out} --x x --y y{columns}",
    "projector": "tensorboard --logdir {out}",
    "fiftyone": "in Python, fiftyone.Dataset.from_dir({out}, fiftyone.types.FiftyOneDataset)",
}


@command(options=ExportOptions)
def main(options: ExportOptions) -> int:
    """Export the source, and return 1 if some videos could not be read for a thumbnail, else 0."""
    from sce_video.interop.export.export_run import export

    result, lines, columns = export(options), [], ""
    if result.network is not None:
        lines += _of_network(result.network)
    if result.segments is not None:
        of_videos = f"{result.segments.segments} segments of {result.segments.videos} videos"
        lines.append(f"{options.out}: {of_videos}")
    if result.videos is not None:
        lines += _of_videos(result.videos)
        columns += " --neighbors neighbors" * (options.neighbours > 0 and result.videos.videos > 1)
        columns += " --image thumbnail" * (options.thumbnail_side > 0)
    if options.to in _NEXT:
        out = repr(options.out) if options.to == "fiftyone" else shlex.quote(options.out)
        lines.append("next: " + _NEXT[options.to].format(out=out, columns=columns))
    print("\n".join(map(printable, lines)))
    return 1 if result.videos is not None and result.videos.failures else 0


def _of_network(report: NetworkReport) -> list[str]:
    """Describe an exported network."""
    lines = [f"{report.path}: {' and '.join(report.outputs)} of uint8 clips (N, T, H, W, 3)"]
    if report.difference is not None:
        sizes = "batch, length and size" if report.any_size else "the batch"
        lines += [
            f"{sizes} of the clips may differ from call to call",
            f"largest difference from PyTorch on random clips: {report.difference:.1e}",
        ]
    return lines


def _of_videos(report: VideosReport) -> list[str]:
    """Describe exported videos."""
    return [
        f"{report.path}: {report.videos} videos, {report.labelled} with a label, map by "
        f"{report.map_name}, {len(report.failures)} without a thumbnail",
        *report.notes,
        *shown_failures(report.failures),
    ]
