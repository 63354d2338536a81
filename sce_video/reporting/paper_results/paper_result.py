"""One number of the paper."""

from __future__ import annotations

from dataclasses import dataclass

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
        pretraining: Name in :data:`~sce_video.published.METHODS` or
            :data:`~sce_video.published.IMAGE_METHODS`: ``sce`` (the best setting of
            tab:video-best), ``sce_baseline`` (the baseline of the ablations), ``supervised``, a row
            of an ablation; None if not pretrained.
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
    def printed_values(self) -> tuple[float, ...]:
        """The value, and others that it was rounded to in other tables."""
        return self.value, *(value for _, value in self.also)

    @property
    def remark(self) -> str:
        """The note, and where else the number is printed."""
        elsewhere = [
            table if value == self.value else f"{table} ({value})" for table, value in self.also
        ]
        also = f"also in {', '.join(elsewhere)}" if elsewhere else ""
        return "; ".join(text for text in (also, self.note) if text)
