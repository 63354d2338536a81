"""``sce-video predict``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sce_video.options.find import PredictOptions
from sce_video.utils.command import command, printable, shown_failures

if TYPE_CHECKING:
    from sce_video.datasets.segments import Segment
    from sce_video.find.predict import Prediction, PredictResult


@command(options=PredictOptions)
def main(options: PredictOptions) -> int:
    """Classify the videos, and return 1 if no file could be decoded, else 0."""
    from sce_video.find.predict import Prediction, predict

    def show(found: Prediction | Segment) -> None:
        if isinstance(found, Prediction):
            words = ", ".join(f"{name} {p:.3f}" for name, p in found.classes)
            line = f"{found.path}: {words}" if words else ""
        else:
            moment = f"{found.start:.2f}-{found.end:.2f}"
            line = f"{found.path}@{moment}: {found.label} {found.score:.3f}"
        if line:
            print(printable(line), flush=True)

    result = predict(options, show if options.csv is None else None)
    # Without --csv, the standard output contains only the predictions.
    out = sys.stdout if options.csv else sys.stderr
    print("\n".join(map(printable, _summary(result, options))), file=out)
    return int(result.done == 0)


def _summary(result: PredictResult, options: PredictOptions) -> list[str]:
    """Describe how many files were classified, and where the results are."""
    if options.windows is None:
        where = f", written to {options.csv}" if options.csv else ""
        lines = [f"predict: {result.done} of {result.files} files classified{where}"]
        return lines + shown_failures(result.failures, f", in {options.csv}" if options.csv else "")
    outs = (options.csv, options.json, options.html)
    files = "".join(f", {out}" for out in outs if out is not None)
    counts = f"{len(result.segments)} segments in {result.done} of {result.files} videos"
    lines = [f"predict: {counts}{files}", *shown_failures(result.failures)]
    if result.clips is not None:
        lines += [f"clips: {result.clips} in {options.clips}", *shown_failures(result.not_cut)]
    return lines
