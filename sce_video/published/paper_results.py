"""The numbers of the paper, each with the setting it was measured in: ``paper_results.csv``.

A number that several tables print is listed once, with the others in ``also``. The baseline of the
ablations is a row of all their tables. tab:video-sota-action has means over three splits, except
for the K200 network, whose numbers are on split 1, as in tab:video-best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sce_video.published import read_published

#: ``PaperResult.split`` for a mean over the three splits of UCF101 or HMDB51.
MEAN_OF_SPLITS = "mean of 3"


@dataclass(frozen=True)
class PaperResult:
    """One number of the paper and the setting it was measured in.

    Attributes:
        protocol: ``linear``, ``finetune``, ``retrieval``, ``supervised`` or ``detection``; of
            images also ``many_shot``, ``low_shot_svm`` and ``instance_segmentation``.
        dataset: Test data: ``kinetics400``, ``ucf101``, ``cifar10``, ...
        split: 1, ``mean of 3`` or ``val``.
        metric: Name in results.json: ``top1``, ``retrieval_r1``, ``mAP``, ...
        value: In percent, as printed.
        network: ``r3d18``, ``r3d50``, ``r18_small`` or ``r50_2d``.
        frames: Frames of a clip; an image is a clip of one.
        size: Height and width of a training crop, pixels.
        pretrained_on: Data set of the pretraining; None if not pretrained.
        pretraining: ``sce`` (the best setting of tab:video-best), ``sce_baseline`` (the baseline of
            the ablations), ``supervised``, a row of an ablation; None if not pretrained.
        table: Label of the table in the paper.
        row: Row of the table.
        note: Remark for the reader of the report.
        decimals: Decimals as printed.
        pretraining_epochs: Epochs of the pretraining where the paper has several numbers for one
            method; else None.
        also: Other tables that print the same measurement, and the value there.
    """

    protocol: str
    dataset: str
    split: int | str
    metric: str
    value: float
    network: str
    frames: int
    size: int
    pretrained_on: str | None
    pretraining: str | None
    table: str
    row: str
    note: str = ""
    decimals: int = 1
    pretraining_epochs: int | None = None
    also: tuple[tuple[str, float], ...] = ()

    @property
    def remark(self) -> str:
        """The note, and where else the number is printed."""
        elsewhere = ", ".join(
            table if value == self.value else f"{table} ({value})" for table, value in self.also
        )
        also = f"also in {elsewhere}" if elsewhere else ""
        return "; ".join(text for text in (also, self.note) if text)


#: Data set and metric of the last cell of tab:many-shot, the mean of the others.
MEAN_OF_SETS = "many_shot_mean"


def _read_results() -> tuple[PaperResult, ...]:
    """Read the numbers in the order of the report: those on videos, then those on images."""
    results = []
    for cells in read_published("paper_results.csv"):
        elsewhere = (cell.split(" ") for cell in cells["also"].split("; ") if cell)
        split, epochs = cells["split"], cells["pretraining_epochs"]
        own: dict[str, Any] = {
            "split": int(split) if split.isdecimal() else split,
            "value": float(cells["value"]),
            "decimals": len(cells["value"].partition(".")[2]),
            "frames": int(cells["frames"]),
            "size": int(cells["size"]),
            "pretrained_on": cells["pretrained_on"] or None,
            "pretraining": cells["pretraining"] or None,
            "pretraining_epochs": int(epochs) if epochs else None,
            "also": tuple((table, float(value)) for table, value in elsewhere),
        }
        results.append(PaperResult(**{**cells, **own}))
    return tuple(results)


_RESULTS = _read_results()
#: All numbers on videos, and all on images.
PAPER_RESULTS = tuple(result for result in _RESULTS if result.network.startswith("r3d"))
IMAGE_RESULTS = tuple(result for result in _RESULTS if not result.network.startswith("r3d"))
#: tab:many-shot without its mean: data set, metric, value.
MANY_SHOT = tuple(
    (result.dataset, result.metric.removeprefix("many_shot_"), f"{result.value:.1f}")
    for result in IMAGE_RESULTS
    if result.table == "tab:many-shot" and result.dataset != MEAN_OF_SETS
)
