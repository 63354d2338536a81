"""The numbers of the paper, each with the setting it was measured in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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


_NETWORKS = {"r3d18": "ResNet3D-18", "r3d50": "ResNet3D-50"}
_SHORT = {"kinetics200": "K200", "kinetics400": "K400"}

# network, frames, size, pretrained on; K400 linear, UCF101, HMDB51
_ACTION: tuple[tuple[str, int, int, str, float | None, float, float], ...] = (
    ("r3d18", 8, 224, "kinetics200", None, 88.4, 62.0),
    ("r3d18", 16, 112, "kinetics400", 56.6, 89.1, 66.6),
    ("r3d18", 8, 224, "kinetics400", 59.8, 90.9, 65.7),
    ("r3d50", 8, 224, "kinetics400", 67.6, 94.1, 70.5),
    ("r3d50", 16, 224, "kinetics400", 69.6, 95.3, 74.7),
)
# network, frames, size; UCF101 R@1, R@5, R@10; HMDB51 R@1, R@5, R@10
_RETRIEVAL: tuple[tuple[str, int, int, tuple[float, ...], tuple[float, ...]], ...] = (
    ("r3d18", 16, 112, (74.5, 85.9, 90.5), (37.8, 62.1, 73.8)),
    ("r3d18", 8, 224, (74.4, 85.6, 90.0), (40.1, 63.3, 75.4)),
    ("r3d50", 8, 224, (81.5, 89.7, 92.8), (43.0, 67.0, 79.0)),
    ("r3d50", 16, 224, (83.9, 92.2, 94.9), (45.9, 69.9, 80.5)),
)
# frames; UCF101 split 1, AVA mAP, SSv2. All ResNet3D-50, 224, K400.
_GENERALIZATION = ((8, (94.1, 20.3, 53.9)), (16, (95.5, 21.6, 57.2)))
# pretraining method, on K200; K200 linear, UCF101, HMDB51, split 1; table, row. The baseline is a
# row of all tables, and listed once; UCF101 and HMDB51 of the best setting are in ``_ACTION``.
_ABLATION: tuple[tuple[str, tuple[float | None, ...], str, str], ...] = (
    ("sce_baseline", (63.9, 86.3, 57.0), "tab:video-baseline", "SCE Baseline"),
    ("supervised", (None, 87.5, 60.1), "tab:video-baseline", "Supervised"),
    ("sce_baseline_lambda_0.0", (64.2, 86.2, 57.5), "tab:video-lambda-vary", "0.000"),
    ("sce_baseline_lambda_0.125", (64.8, 86.9, 58.2), "tab:video-lambda-vary", "0.125"),
    ("sce_baseline_lambda_0.25", (64.3, 86.7, 58.2), "tab:video-lambda-vary", "0.250"),
    ("sce_baseline_lambda_0.375", (64.7, 86.3, 56.8), "tab:video-lambda-vary", "0.375"),
    ("sce_baseline_lambda_0.625", (63.4, 86.2, 55.7), "tab:video-lambda-vary", "0.625"),
    ("sce_baseline_lambda_0.75", (63.1, 85.8, 56.2), "tab:video-lambda-vary", "0.750"),
    ("sce_baseline_lambda_0.875", (62.1, 85.7, 55.3), "tab:video-lambda-vary", "0.875"),
    ("sce_baseline_lambda_1.0", (61.9, 85.0, 55.4), "tab:video-lambda-vary", "1.000"),
    ("sce_baseline_tau_m_0.03", (63.4, 86.1, 56.9), "tab:video-temp", "0.03"),
    ("sce_baseline_tau_m_0.04", (63.8, 86.6, 56.6), "tab:video-temp", "0.04"),
    ("sce_baseline_tau_m_0.05", (64.3, 86.4, 57.1), "tab:video-temp", "0.05"),
    ("sce_baseline_tau_m_0.06", (64.1, 86.2, 56.4), "tab:video-temp", "0.06"),
    ("sce_baseline_tau_m_0.08", (63.8, 85.9, 55.8), "tab:video-temp", "0.08"),
    ("sce_baseline_strength_0.75", (64.6, 86.8, 57.8), "tab:video-color", "0.75"),
    ("sce_baseline_strength_1.0", (64.8, 87.0, 58.1), "tab:video-color", "1.00"),
    ("sce_baseline_jitter_0.2", (64.2, 86.4, 56.9), "tab:video-time", "0.2, 0.0, 0.0"),
    ("sce_baseline_reverse_0.2", (64.0, 85.7, 55.4), "tab:video-time", "0.0, 0.2, 0.0"),
    ("sce_baseline_diff_0.2", (65.4, 88.3, 61.4), "tab:video-time", "0.0, 0.0, 0.2"),
    ("sce_baseline_diff_0.5", (64.1, 87.7, 60.8), "tab:video-time", "0.0, 0.0, 0.5"),
    ("sce_lambda_0.125", (65.0, 87.4, 61.1), "tab:video-best", "0.125, 0.05, 0.2, 1.0"),
    ("sce_lambda_0.125_tau_m_0.07", (64.7, 88.2, 60.6), "tab:video-best", "0.125, 0.07, 0.2, 1.0"),
    ("sce", (66.0, None, None), "tab:video-best", "0.500, 0.05, 0.2, 1.0"),
    ("sce_tau_m_0.07", (65.4, 88.6, 61.0), "tab:video-best", "0.500, 0.07, 0.2, 1.0"),
)


def _videos() -> Iterator[PaperResult]:
    def row(network: str, frames: int, size: int, source: str) -> str:
        return f"SCE (Ours), {_NETWORKS[network]}, {frames} x {size}², {_SHORT[source]}"

    for network, frames, size, source, linear, ucf101, hmdb51 in _ACTION:
        # The caption says three splits; the K200 numbers are those of tab:video-best, split 1.
        short = source == "kinetics200"
        split: int | str = 1 if short else MEAN_OF_SPLITS
        best = "also in tab:video-best" if short else ""
        generalized = "also in tab:video-sota-generalization" if network == "r3d50" else ""
        clip = network, frames, size
        place = "tab:video-sota-action", row(*clip, source)
        if linear is not None:
            task = "linear", "kinetics400", "val", "top1"
            yield PaperResult(*task, linear, *clip, source, "sce", *place, note=generalized)
        for dataset, value in (("ucf101", ucf101), ("hmdb51", hmdb51)):
            tuned = "finetune", dataset, split, "top1"
            yield PaperResult(*tuned, value, *clip, source, "sce", *place, note=best)
    origin = "kinetics400", "sce"
    for network, frames, size, *found in _RETRIEVAL:
        place = "tab:video-sota-retrieval", row(network, frames, size, "kinetics400")
        for dataset, values in zip(("ucf101", "hmdb51"), found, strict=True):
            for k, value in zip((1, 5, 10), values, strict=True):
                recall = "retrieval", dataset, 1, f"retrieval_r{k}"
                yield PaperResult(*recall, value, network, frames, size, *origin, *place)
    tasks: tuple[tuple[str, str, int | str, str], ...] = (
        ("finetune", "ucf101", 1, "top1"),
        ("detection", "ava", "val", "mAP"),
        ("finetune", "ssv2", "val", "top1"),
    )
    for frames, values in _GENERALIZATION:
        place = "tab:video-sota-generalization", f"SCE (Ours), 2 views, T = {frames}"
        for general, value in zip(tasks, values, strict=True):
            yield PaperResult(*general, value, "r3d50", frames, 224, *origin, *place)


def _video_ablations() -> Iterator[PaperResult]:
    source = "kinetics200"
    clip = "r3d18", 8, 224
    tasks: tuple[tuple[str, str, int | str, str], ...] = (
        ("linear", source, "val", "top1"),
        ("finetune", "ucf101", 1, "top1"),
        ("finetune", "hmdb51", 1, "top1"),
    )
    for pretraining, cells, table, row in _ABLATION:
        for task, value in zip(tasks, cells, strict=True):
            if value is not None:
                yield PaperResult(*task, value, *clip, source, pretraining, table, row)
    task = "supervised", source, "val", "top1"
    yield PaperResult(*task, 72.0, *clip, None, None, "tab:video-baseline", "Supervised")


#: All numbers on videos, in the order of the report.
PAPER_RESULTS: tuple[PaperResult, ...] = (*_videos(), *_video_ablations())


#: Data set and metric of the last cell of tab:many-shot, the mean of the others.
MEAN_OF_SETS = "many_shot_mean"

# tab:loss: name of the pretraining, coefficients, tau_m 0.05 or 0.07; other tables that print it.
_LOSS: tuple[tuple[str, str, str, tuple[tuple[str, float], ...]], ...] = (
    ("sce_images_lambda_1.0", "InfoNCE, 1, 0, 0", "81.11", (("tab:lambda", 81.1),)),
    ("sce_images_free_0.5_0.5_0_tau_m_0.05", "0.5, 0.5, 0, tau_m 0.05", "82.80", ()),
    ("sce_images_free_0.5_0.5_0_tau_m_0.07", "0.5, 0.5, 0, tau_m 0.07", "82.49", ()),
    (
        "sce_images_tau_0.1_tau_m_0.05",
        "SCE, 0.5, 0.5, 0.5, tau_m 0.05",
        "82.94",
        (("tab:lambda", 82.9), ("tab:aug", 82.9), ("tab:temperature", 82.9)),
    ),
    (
        "sce_images_tau_0.1_tau_m_0.07",
        "SCE, 0.5, 0.5, 0.5, tau_m 0.07",
        "83.37",
        (("tab:temperature", 83.4), ("tab:baselines", 83.4)),
    ),
    ("sce_images_free_0_1_0_tau_m_0.05", "ReSSL, 0, 1, 0, tau_m 0.05", "80.79", ()),
    ("sce_images_free_0_1_0_tau_m_0.07", "ReSSL, 0, 1, 0, tau_m 0.07", "78.35", ()),
    ("sce_images_lambda_0.0", "0, 1, 1, tau_m 0.05", "81.53", (("tab:lambda", 81.5),)),
    ("sce_images_lambda_0.0_tau_m_0.07", "0, 1, 1, tau_m 0.07", "79.64", ()),
)
# tab:lambda, from 0.1; those of tab:loss are listed there.
_LAMBDA = {
    "0.1": "81.8", "0.2": "82.5", "0.3": "82.8", "0.4": "82.9",
    "0.6": "82.2", "0.7": "81.6", "0.8": "81.8", "0.9": "81.8",
}  # fmt: skip
# tab:aug without its first row: name, row, value.
_AUG = (
    ("gamma_weak", "strong-gamma, weak, no", "83.0"),
    ("weak_strong", "weak, strong, no", "73.4"),
    ("strong_strong", "strong, strong, no", "80.5"),
    ("alpha_beta", "strong-alpha, strong-beta, no", "80.7"),
    ("symmetric_strong_weak", "strong, weak, yes", "83.7"),
    ("symmetric_strong_strong", "strong, strong, yes", "83.0"),
    ("symmetric_alpha_beta", "strong-alpha, strong-beta, yes", "84.2"),
)
_TAUS_M = ("0.03", "0.04", "0.05", "0.06", "0.07", "0.08", "0.09", "0.10")
# tab:temperature by tau; None: listed in tab:loss.
_TEMPERATURE: dict[str, tuple[str | None, ...]] = {
    "0.1": ("82.3", "82.5", None, "82.5", None, "82.7", "82.5", "82.1"),
    "0.2": ("81.3", "81.2", "81.2", "81.2", "81.1", "80.9", "81.2", "81.2"),
}
# tab:temperature-small by data set and tau.
_SMALL: dict[tuple[str, str], tuple[str, ...]] = {
    ("cifar10", "0.1"): ("89.93", "90.03", "90.06", "90.20", "90.16", "90.06", "89.67", "88.97"),
    ("cifar10", "0.2"): ("89.98", "90.12", "90.12", "90.05", "90.13", "90.09", "90.22", "90.34"),
    ("cifar100", "0.1"): ("64.49", "64.90", "65.19", "65.33", "65.27", "65.45", "64.89", "63.87"),
    ("cifar100", "0.2"): ("63.71", "63.74", "63.89", "64.05", "64.24", "64.23", "64.10", "64.30"),
    ("stl10", "0.1"): ("89.34", "89.94", "89.87", "89.84", "89.72", "89.52", "88.99", "88.41"),
    ("stl10", "0.2"): ("88.4", "88.23", "88.4", "88.35", "87.54", "88.32", "88.80", "88.59"),
    ("tiny_imagenet", "0.1"): (
        *("50.23", "51.12", "51.41", "51.66", "51.90", "51.58", "51.37", "50.46"),
    ),
    ("tiny_imagenet", "0.2"): (
        *("48.56", "48.85", "48.35", "48.98", "49.06", "49.15", "49.66", "49.64"),
    ),
}
#: The best of each set, which is the row "SCE" of tab:baselines: its value there.
_BEST = {"cifar10": 90.3, "cifar100": 65.5, "stl10": 89.9, "tiny_imagenet": 51.9}
_SIZES = {"cifar10": 32, "cifar100": 32, "stl10": 96, "tiny_imagenet": 64}
# tab:baselines: ImageNet, ImageNet100, CIFAR10, CIFAR100, STL10, Tiny-ImageNet; of SCE all but the
# first are listed with tab:loss and tab:temperature-small.
_DATASETS = ("imagenet", "imagenet100", "cifar10", "cifar100", "stl10", "tiny_imagenet")
_BASELINES = (
    ("moco_images", "MoCov2 [*]", ("68.8", "80.5", "87.6", "61.0", "86.5", "45.9")),
    ("ressl_images", "ReSSL [*]", ("70.2", "81.6", "90.2", "64.0", "89.1", "49.5")),
    ("sce_images_tau_0.1_tau_m_0.07", "SCE (Ours)", ("70.5",)),
)
#: The two linear evaluations on ImageNet (appendices D.1 and D.2).
_SGD = "linear evaluation of 100 epochs at a rate of 30"
_DETECTRON = "Mask R-CNN of detectron2, not run by this repository"
_LARS = "linear evaluation of 90 epochs at 0.1 x batch/256"
_SOTA = {100: "72.1", 200: "72.7", 300: "73.3", 1000: "74.1"}
#: tab:many-shot: data set, metric, value.
MANY_SHOT = (
    ("food101", "top1", "77.7"),
    ("cifar10", "top1", "94.8"),
    ("cifar100", "top1", "80.4"),
    ("sun397", "top1", "65.3"),
    ("cars", "top1", "65.7"),
    ("aircraft", "mean_class", "59.6"),
    ("voc2007", "map11", "84.0"),
    ("dtd", "top1", "77.1"),
    ("pets", "mean_class", "90.9"),
    ("caltech101", "mean_class", "92.7"),
    ("flowers", "mean_class", "96.1"),
)
_LOW_SHOT = {"16": "79.5", "32": "83.1", "64": "85.5", "full": "88.2"}
_COCO = {"box_AP": "41.6", "mask_AP": "36.0"}


def _number(value: str, dataset: str, pretraining: str, table: str, row: str) -> PaperResult:
    """A number of the linear evaluation on the data set of the pretraining."""
    return PaperResult(
        protocol="linear",
        dataset=dataset,
        split="val",
        metric="top1",
        value=float(value),
        network="r18_small" if dataset in _SIZES else "r50_2d",
        frames=1,
        size=_SIZES.get(dataset, 224),
        pretrained_on=dataset,
        pretraining=pretraining,
        table=table,
        row=row,
        decimals=len(value.partition(".")[2]),
    )


def _temperatures(tau: str, tau_m: str) -> tuple[str, str]:
    """Name of a pretraining, ``sce_images_tau_0.2_tau_m_0.1``, and its row."""
    return f"sce_images_tau_{tau}_tau_m_{float(tau_m)}", f"tau {tau}, tau_m {tau_m}"


def _small_images() -> Iterator[PaperResult]:
    for name, row, printed in _BASELINES:
        for data, value in zip(_DATASETS, printed, strict=False):
            # 0.04 on ImageNet (KyleZheng1997/ReSSL); "their best" on the small sets.
            unknown = name == "ressl_images" and data in _SIZES
            note = "the paper does not state its tau_m" if unknown else ""
            note = _SGD if data == "imagenet" else note
            yield replace(_number(value, data, name, "tab:baselines", row), note=note)
    for (data, tau), values in _SMALL.items():
        best = max(float(v) for (name, _), cells in _SMALL.items() if name == data for v in cells)
        for tau_m, value in zip(_TAUS_M, values, strict=True):
            also = (("tab:baselines", _BEST[data]),) if float(value) == best else ()
            name, row = _temperatures(tau, tau_m)
            yield replace(_number(value, data, name, "tab:temperature-small", row), also=also)


def _imagenet() -> Iterator[PaperResult]:
    data = "imagenet100"
    for name, row, value, also in _LOSS:
        yield replace(_number(value, data, name, "tab:loss", row), also=also)
    for row, value in _LAMBDA.items():
        yield _number(value, data, f"sce_images_lambda_{row}", "tab:lambda", row)
    for name, row, value in _AUG:
        yield _number(value, data, f"sce_images_{name}", "tab:aug", row)
    for tau, found in _TEMPERATURE.items():
        for tau_m, cell in zip(_TAUS_M, found, strict=True):
            if cell is not None:
                name, row = _temperatures(tau, tau_m)
                yield _number(cell, data, name, "tab:temperature", row)
    for epochs, value in _SOTA.items():
        row = f"SCE (Ours), {epochs} epochs"
        number = _number(value, "imagenet", "sce_images_lars", "tab:sota", row)
        yield replace(number, pretraining_epochs=epochs, note=_LARS)
    row, name = "SCE (ours), 200 epochs", "sce_images_multicrop"
    yield replace(_number("75.4", "imagenet", name, "tab:sota-multi-crop", row), note=_LARS)
    # Protocols on the network of tab:sota-multi-crop.
    shots = [("voc2007", f"low_shot_map_{k}", value) for k, value in _LOW_SHOT.items()]
    sets = [(data, f"many_shot_{metric}", value) for data, metric, value in MANY_SHOT]
    boxes = [("coco", metric, value) for metric, value in _COCO.items()]
    for protocol, table, tasks, note in (
        ("many_shot", "tab:many-shot", [*sets, (MEAN_OF_SETS, MEAN_OF_SETS, "80.4")], ""),
        ("low_shot_svm", "tab:low-shot-voc", shots, ""),
        ("instance_segmentation", "tab:object-detection", boxes, _DETECTRON),
    ):
        for dataset, metric, value in tasks:
            number = _number(value, "imagenet", name, table, "SCE (Ours)")
            yield replace(number, protocol=protocol, dataset=dataset, metric=metric, note=note)


#: All numbers on images, in the order of the report.
IMAGE_RESULTS: tuple[PaperResult, ...] = (*_small_images(), *_imagenet())
