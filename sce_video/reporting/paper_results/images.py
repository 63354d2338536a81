"""The paper's numbers on images: SCE, and the authors' own runs of MoCo v2 and ReSSL ("[*]").

Numbers are texts, so that they keep their decimals. A measurement that several tables print is
listed once, in the table with the most decimals, and names the others: tab:loss prints 82.94 for
what is 82.9 in tab:lambda, tab:aug and tab:temperature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sce_video.published import image_settings
from sce_video.reporting.paper_results.paper_result import PaperResult

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
_LARS = "linear evaluation of 90 epochs at 0.1 x batch/256"
_SOTA = {100: "72.1", 200: "72.7", 300: "73.3", 1000: "74.1"}
# tab:many-shot: data set, metric, value.
_MANY_SHOT = (
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


def _ablations() -> Iterator[PaperResult]:
    """The tables on ImageNet100."""
    data = "imagenet100"
    for name, row, value, also in _LOSS:
        yield replace(_number(value, data, name, "tab:loss", row), also=also)
    for row, value in _LAMBDA.items():
        yield _number(value, data, f"sce_images_lambda_{row}", "tab:lambda", row)
    for name, row, value in _AUG:
        yield _number(value, data, f"sce_images_{name}", "tab:aug", row)
    for tau, values in _TEMPERATURE.items():
        for tau_m, cell in zip(_TAUS_M, values, strict=True):
            if cell is not None:
                row = f"tau {tau}, tau_m {tau_m}"
                yield _number(cell, data, _temperatures(tau, tau_m), "tab:temperature", row)


def _temperatures(tau: str, tau_m: str) -> str:
    """Name of a pretraining: ``sce_images_tau_0.2_tau_m_0.1``."""
    return f"sce_images_tau_{tau}_tau_m_{float(tau_m)}"


def _small() -> Iterator[PaperResult]:
    for (data, tau), values in _SMALL.items():
        best = max(float(v) for (name, _), cells in _SMALL.items() if name == data for v in cells)
        for tau_m, value in zip(_TAUS_M, values, strict=True):
            also = (("tab:baselines", _BEST[data]),) if float(value) == best else ()
            row = f"tau {tau}, tau_m {tau_m}"
            name = _temperatures(tau, tau_m)
            yield replace(_number(value, data, name, "tab:temperature-small", row), also=also)


def _baselines() -> Iterator[PaperResult]:
    for name, row, values in _BASELINES:
        for data, value in zip(_DATASETS, values, strict=False):
            settings = image_settings(name, data, 200) or {}
            unknown = settings["type"] == "ReSSL" and "tau_m" not in settings
            note = "the paper does not state its tau_m" if unknown else ""
            note = _SGD if data == "imagenet" else note
            yield replace(_number(value, data, name, "tab:baselines", row), note=note)


def _imagenet() -> Iterator[PaperResult]:
    for epochs, value in _SOTA.items():
        row = f"SCE (Ours), {epochs} epochs"
        number = _number(value, "imagenet", "sce_images_lars", "tab:sota", row)
        yield replace(number, pretraining_epochs=epochs, note=_LARS)
    row = "SCE (ours), 200 epochs"
    number = _number("75.4", "imagenet", "sce_images_multicrop", "tab:sota-multi-crop", row)
    yield replace(number, note=_LARS)


def _transfer() -> Iterator[PaperResult]:
    """Protocols on the network of tab:sota-multi-crop."""
    cells = [("many_shot", data, f"many_shot_{m}", value) for data, m, value in _MANY_SHOT]
    cells.append(("many_shot", MEAN_OF_SETS, MEAN_OF_SETS, "80.4"))
    cells += [("low_shot_svm", "voc2007", f"low_shot_map_{k}", v) for k, v in _LOW_SHOT.items()]
    cells += [("instance_segmentation", "coco", metric, v) for metric, v in _COCO.items()]
    tables = {
        "many_shot": ("tab:many-shot", ""),
        "low_shot_svm": ("tab:low-shot-voc", ""),
        "instance_segmentation": (
            "tab:object-detection",
            "Mask R-CNN of detectron2, not run by this repository",
        ),
    }
    for protocol, dataset, metric, value in cells:
        table, note = tables[protocol]
        number = _number(value, "imagenet", "sce_images_multicrop", table, "SCE (Ours)")
        yield replace(number, protocol=protocol, dataset=dataset, metric=metric, note=note)


#: All numbers on images, in the order of the report.
IMAGE_RESULTS: tuple[PaperResult, ...] = (
    *_baselines(),
    *_small(),
    *_ablations(),
    *_imagenet(),
    *_transfer(),
)
