"""Names and phrases of the report and of the tables of sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from sce_video.published.paper_results import PaperResult
from sce_video.published.recipes import SETTING, VIEWS
from sce_video.reporting.comparability import unit_of, views_of
from sce_video.reporting.result_files import Result
from sce_video.utils.metric_names import NOT_FRACTIONS, is_trivial

#: Names that are written in capitals, with one, or with spaces for underscores; then all others.
_CAPITALS = "cifar10 cifar100 stl10 sun397 voc2007 dtd coco ucf101 hmdb51 ava sce byol"
_SPACED = "attentive_probe mean_class_accuracy feature_std effective_rank box_AP mask_AP"
_NAMES = {
    **{name: name.upper() for name in _CAPITALS.split()},
    **{name: name.capitalize() for name in ("cars", "aircraft", "pets", "flowers")},
    **{name: name.replace("_", " ") for name in _SPACED.split()},
    "tiny_imagenet": "Tiny-ImageNet",
    "imagenet100": "ImageNet100",
    "imagenet": "ImageNet",
    "food101": "Food-101",
    "caltech101": "Caltech-101",
    "kinetics400": "Kinetics-400",
    "kinetics200": "Kinetics-200",
    "ssv2": "SSv2",
    "r3d18": "ResNet3D-18",
    "r3d50": "ResNet3D-50",
    "r3d101": "ResNet3D-101",
    "r2plus1d18": "R(2+1)D-18",
    "s3dg": "S3D-G",
    "r18_small": "ResNet-18 (3x3 stem)",
    "r50_2d": "ResNet-50",
    "many_shot": "many-shot linear",
    "low_shot_svm": "low-shot SVM",
    "instance_segmentation": "Mask R-CNN",
    "finetune": "finetuned",
    "top1": "top-1",
    "top5": "top-5",
    "sce_baseline": "SCE baseline",
    "sce_images_lars": "SCE, symmetric, LARS",
    "sce_images_multicrop": "SCE, multi-crop",
    "moco_images": "MoCo v2",
    "ressl_images": "ReSSL",
    "lejepa": "LeJEPA",
    "mocov3": "MoCo v3",
    "simclr": "SimCLR",
    "moco": "MoCo v2",
    "ressl": "ReSSL",
    "swav": "SwAV",
    "moco_rho": "rho-MoCo",
    "byol_rho": "rho-BYOL",
    "simclr_rho": "rho-SimCLR",
    "swav_rho": "rho-SwAV",
    "linear_top1": "linear probe top-1",
    "linear_top5": "linear probe top-5",
    "linear_mean_class": "linear probe mean class",
    "knn_top1": "kNN top-1",
    "knn_top5": "kNN top-5",
    "one_view_top1": "1 view top-1",
    "one_view_top5": "1 view top-5",
    "one_view_mean_class_accuracy": "1 view mean class",
    "many_shot_top1": "top-1",
    "many_shot_mean_class": "mean class",
    "many_shot_map11": "11-point mAP",
    "many_shot_mean": "mean of 11 sets",
    "low_shot_map_full": "mAP, all images",
}
#: Titles of the tables by their labels in the paper.
_TABLES = {
    "tab:lambda": "Ablation on ImageNet100: lambda",
    "tab:loss": "Ablation on ImageNet100: coefficients of the loss",
    "tab:aug": "Ablation on ImageNet100: views and symmetry",
    "tab:temperature": "Ablation on ImageNet100: temperatures",
    "tab:temperature-small": "Temperatures on small images",
    "tab:baselines": "SCE and its baselines",
    "tab:sota": "ImageNet, two views",
    "tab:sota-multi-crop": "ImageNet, multi-crop",
    "tab:many-shot": "Transfer: many-shot linear classification",
    "tab:low-shot-voc": "Transfer: low-shot SVMs on VOC2007",
    "tab:object-detection": "Transfer: Mask R-CNN on COCO",
    "tab:video-sota-action": "Action recognition",
    "tab:video-sota-retrieval": "Video retrieval",
    "tab:video-sota-generalization": "Generalization",
    "tab:video-baseline": "Ablation on Kinetics-200: baseline and supervised",
    "tab:video-lambda-vary": "Ablation on Kinetics-200: lambda",
    "tab:video-temp": "Ablation on Kinetics-200: tau_m",
    "tab:video-color": "Ablation on Kinetics-200: colour strength",
    "tab:video-time": "Ablation on Kinetics-200: jitter, reverse, diff",
    "tab:video-best": "Ablation on Kinetics-200: best setting",
}


def name_of(value: Any) -> str:
    """A name of a config or a metric, for readers.

    Rows of an ablation are named by what they vary (``SCE, lambda 0.125``), metrics of retrieval as
    ``R@5``. A name that is not known is returned as it is, anything but text as its ``str``.
    """
    if not isinstance(value, str):
        return str(value)
    if value in _NAMES:
        return _NAMES[value]
    images, _, row = value.partition("sce_images_")
    if not images and row in VIEWS:
        online, target, symmetric = VIEWS[row]
        return f"SCE{', symmetric' if symmetric else ''}, {online} / {target}"
    name, settings = "", ""
    if free := re.fullmatch(r"sce_images_free_([\d.]+)_([\d.]+)_([\d.]+)(_.*)", value):
        name, settings = f"SCE, coefficients {', '.join(free.groups()[:3])}", free[4]
    elif value.startswith("sce_images_"):
        name, settings = "SCE", f"_{row}"
    elif varied := re.fullmatch(r"(sce(?:_baseline)?)((?:_[a-z_]+_\d+\.\d+)+)", value):
        name, settings = _NAMES[varied[1]], varied[2]
    if name:  # a row of an ablation, named by what differs
        return ", ".join([name, *(f"{key} {n}" for key, n in SETTING.findall(settings))])
    if recall := re.fullmatch(r"retrieval_(plain_)?r(\d+)", value):
        return f"R@{recall[2]}{' (plain)' if recall[1] else ''}"
    shots = re.fullmatch(r"low_shot_map_(\d+)", value)
    return value if shots is None else f"mAP, {shots[1]} images per class"


def table_title(table: str) -> str:
    """Title of a table of the paper, by its label."""
    return _TABLES.get(table, table)


def describe_evaluation(result: Result) -> str:
    """How a result was measured, in one line; for a mean, what the splits share and each split."""
    if not result.parts:
        return ", ".join(_evaluation_words(result))
    words = [_evaluation_words(part) for part in result.parts]
    shared = [word for word in words[0] if all(word in others for others in words)]
    lines = [", ".join(shared)] if shared else []
    for part, own in zip(result.parts, words, strict=True):
        top1 = format_metric("top1", part.metric("top1"))
        rest = [word for word in (top1, *own) if word and word not in shared]
        lines.append(f"split {part.split}: {', '.join(rest)}")
    return "; ".join(lines)


def _evaluation_words(result: Result) -> list[str]:
    views, unit = views_of(result.protocol), unit_of(result.protocol)
    words = [] if views is None else [f"{views[0]} x {views[1]} views"]
    sizes = map(result.at, ("crop_size", "test_size"))
    words += [f"crop {size}" for size in sizes if isinstance(size, int)][:1]
    counted = (("videos", unit), ("bank_videos", f"gallery {unit}"), ("failures", "failed"))
    counts = ((result.count(name), what) for name, what in counted)
    words += [f"{count:,} {what}" for count, what in counts if count is not None]
    decoders = (result.at(*p, n) for p in ((), ("test",)) for n in ("decoder_version", "decoder"))
    words += [f"decoder {decoder}" for decoder in decoders if decoder][:1]
    checkpoint = result.at("checkpoint")
    if isinstance(checkpoint, dict):
        digest = str(checkpoint.get("sha256") or "")[:12]
        path = str(checkpoint.get("path") or checkpoint.get("source") or "?")
        name = path.replace("\\", "/").rsplit("/", 1)[-1]  # of Windows, too
        words.append(f"checkpoint {name}{f' ({digest})' if digest else ''}")
    for name, what in (("one_view_top1", "1 view top-1"), ("top5", "top-5")):
        if not is_trivial(name, result.at("num_classes")) and result.metric(name) is not None:
            words.append(f"{what} {format_metric(name, result.metric(name))}")
    return words


def describe_benchmark(result: Result) -> str:
    """The setting that a result states: data, protocol, split, network, clip, pretraining."""
    benchmark = result.benchmark
    if not benchmark:
        return "not stated"
    source, method = (
        f"unknown {what}" if (name := benchmark.get(key)) == "unknown" else name and name_of(name)
        for key, what in (("pretrained_on", "data"), ("pretraining", "method"))
    )
    trained = "not pretrained" if source is None else f"pretrained on {source}"
    words = [
        describe_test(result),
        name_of(benchmark.get("network")),
        _clip(benchmark.get("frames"), benchmark.get("size")),
        trained if method is None else f"{trained} by {method}",
    ]
    return ", ".join(word for word in words if word)


def describe_test(result: Result) -> str:
    """Data set, protocol and split that a result states."""
    benchmark = result.benchmark
    words = [name_of(benchmark.get("dataset")), name_of(benchmark.get("protocol"))]
    return ", ".join(word for word in [*words, describe_split(result.split)] if word)


def describe_split(split: int | str | None) -> str:
    """``split 1``, ``mean of 3 splits``; empty if there is only one split."""
    if split is None or split == "val":
        return ""
    return f"split {split}" if isinstance(split, int) else f"{split} splits"


def describe_papers(papers: Sequence[PaperResult]) -> dict[str, str]:
    """What the paper says of a cell: ``benchmark``, ``network``, ``source`` (pretraining),
    ``paper`` (value), ``note``, ``table`` and ``row``.

    ``papers`` share their setting: R@1, R@5 and R@10 of a retrieval, else a single number. The
    value is in percent as printed, ``74.4 / 85.6 / 90.0``.
    """
    paper = papers[0]
    metric = name_of(paper.metric)
    if paper.protocol == "retrieval":
        ranks = [p.metric.removeprefix("retrieval_r") for p in papers]
        metric = f"R@{'/'.join(ranks)}"
    words = [name_of(paper.dataset), name_of(paper.protocol), describe_split(paper.split), metric]
    benchmark = ", ".join(dict.fromkeys(word for word in words if word))
    network = f"{name_of(paper.network)}, {_clip(paper.frames, paper.size)}"
    source = "none" if paper.pretrained_on is None else name_of(paper.pretrained_on)
    if paper.pretraining is not None:
        source += f", {name_of(paper.pretraining)}"
    if paper.pretraining_epochs is not None:
        source += f", {paper.pretraining_epochs} epochs"
    value = format_values((p.value for p in papers), papers)
    texts = {"benchmark": benchmark, "network": network, "source": source, "paper": value}
    return {**texts, "note": paper.remark, "table": paper.table, "row": paper.row}


def _clip(frames: Any, size: Any) -> str:
    """``8 x 224²``; of an image, a clip of one frame, ``224²``."""
    return f"{size}²" if frames == 1 else f"{frames} x {size}²"


def format_metric(name: str, value: float | None) -> str:
    """A fraction in percent, another number as it is; empty for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if name in NOT_FRACTIONS else f"{100 * value:.1f}"


def format_with_interval(name: str, result: Result) -> str:
    """A metric and, where the file states one, its interval: ``84.2 [81.9, 86.4]``."""
    value = format_metric(name, result.metric(name))
    ends = result.intervals.get(name)
    if ends is None or not value:
        return value
    return f"{value} [{', '.join(format_metric(name, end) for end in ends)}]"


def format_values(values: Iterable[float], papers: Sequence[PaperResult]) -> str:
    """``74.4 / 85.6 / 90.0``, with the decimals of the paper."""
    pairs = zip(values, papers, strict=True)
    return " / ".join(f"{value:.{paper.decimals}f}" for value, paper in pairs)


def format_signed(points: float, decimals: int = 1) -> str:
    """``+0.4``, ``-0.3``, ``0.0``."""
    text = f"{points:+.{decimals}f}"
    return text if float(text) else text[1:]
