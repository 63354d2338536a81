"""The numbers of the paper, each with the setting it was measured in: ``paper_results.csv``.

A number that several tables print is listed once, with the others in ``also``. The baseline of the
ablations is a row of all their tables. tab:video-sota-action has means over three splits, except
for the K200 network, whose numbers are on split 1, as in tab:video-best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sce_video.published import read_published

#: ``PaperResult.split`` for a mean over the three splits of UCF101 or HMDB51.
MEAN_OF_SPLITS = "mean of 3"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Conditions of a measurement, which a result must share with a number of the paper.

    Attributes:
        protocol: ``linear``, ``finetune``, ``retrieval``, ``supervised`` or ``detection``. Images
            also have ``many_shot``, ``low_shot_svm`` and ``instance_segmentation``.
        dataset: Test data: ``kinetics400``, ``ucf101``, ``cifar10``, ...
        network: ``r3d18``, ``r3d50``, ``r18_small`` or ``r50_2d``.
        frames: Frames of a clip. An image is a clip of one frame.
        size: Height and width of a training crop, pixels.
        pretrained_on: Dataset of the pretraining run; None if not pretrained.
        pretraining: ``sce`` (the best setting of tab:video-best), ``sce_baseline`` (the baseline of
            the ablations), ``supervised``, a row of an ablation; None if not pretrained.
        pretraining_epochs: Pretraining epochs, if the paper has several numbers for one method;
            else None.
    """

    protocol: str | None
    dataset: str | None
    network: str | None
    frames: int | None
    size: int | None
    pretrained_on: str | None
    pretraining: str | None
    pretraining_epochs: int | None = None

    @classmethod
    def stated(cls, values: Mapping[str, Any]) -> Setting:
        """Return the setting that a file or a config states; what it does not state is None.

        Lists and dicts become text, because settings are compared and looked up.
        """
        hashable = (str, int, float, type(None))
        found: dict[str, Any] = {}
        for name in (*REQUIRED, "pretraining_epochs"):
            value = values.get(name)
            found[name] = value if isinstance(value, hashable) else str(value)
        return cls(**found)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return all fields except the epochs."""
        return tuple(getattr(self, name) for name in REQUIRED)

    @property
    def clip(self) -> tuple[str | None, int | None, int | None]:
        """Return the network and its clips."""
        return self.network, self.frames, self.size


#: What a result must state to be compared.
REQUIRED = ("protocol", "dataset", "network", "frames", "size", "pretrained_on", "pretraining")


@dataclass(frozen=True, kw_only=True)
class PaperResult(Setting):
    """One number of the paper and the setting it was measured in.

    Attributes:
        split: 1, ``mean of 3`` or ``val``.
        metric: Name in results.json: ``top1``, ``retrieval_r1``, ``mAP``, ...
        value: Percent, as printed.
        table: Label of the table in the paper.
        row: Row of the table.
        note: Remark for the reader of the report.
        decimals: Decimals as printed.
        also: Other tables that print the same measurement, and the value there.
    """

    protocol: str
    dataset: str
    network: str
    frames: int
    size: int
    split: int | str
    metric: str
    value: float
    table: str
    row: str
    note: str = ""
    decimals: int = 1
    also: tuple[tuple[str, float], ...] = ()

    def is_of(self, setting: Setting | None) -> bool:
        """Return whether a result's setting equals this number's setting, apart from the split."""
        if setting is None or self.key != setting.key:
            return False
        return self.pretraining_epochs in (None, setting.pretraining_epochs)

    @property
    def remark(self) -> str:
        """Return the note, and where else the number is printed."""
        elsewhere = ", ".join(
            table if value == self.value else f"{table} ({value})" for table, value in self.also
        )
        also = f"also in {elsewhere}" if elsewhere else ""
        return "; ".join(text for text in (also, self.note) if text)


#: Data set and metric of the last cell of tab:many-shot, the mean of the others.
MEAN_OF_SETS = "many_shot_mean"


def _read_results() -> tuple[PaperResult, ...]:
    """Read the numbers in the order of the report: first on videos, then on images."""
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
PAPER_RESULTS = tuple(result for result in _RESULTS if result.frames > 1)
IMAGE_RESULTS = tuple(result for result in _RESULTS if result.frames == 1)
#: tab:many-shot without its mean: data set, metric, value.
MANY_SHOT = tuple(
    (result.dataset, result.metric.removeprefix("many_shot_"), f"{result.value:.1f}")
    for result in IMAGE_RESULTS
    if result.table == "tab:many-shot" and result.dataset != MEAN_OF_SETS
)
