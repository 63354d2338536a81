"""Names and phrases that the markdown and the HTML page of a report share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from sce_video.reporting.comparability import views_of
from sce_video.reporting.paper_results import PaperResult
from sce_video.reporting.result_files import Result, count_of
from sce_video.utils.metric_names import NOT_FRACTIONS, is_trivial

TITLE = "Results compared with those of the paper"
LEGEND = (
    "Percent, as in the paper; differences in percentage points. A result stands beside a number "
    "of the paper only if network, pretraining data, method and epochs are known and equal. "
    "Retrieval is centred; plain is without centring. Deviations from the paper's evaluation "
    "protocol are listed with the result."
)
ABLATIONS = (
    "Ablations: ResNet3D-18, 8 x 224², pretrained on Kinetics-200; linear evaluation on "
    "Kinetics-200, finetuned on split 1 of UCF101 and HMDB51, top-1. An empty cell is measured, or "
    "listed with another table."
)
COLUMNS = ("benchmark", "network", "pretrained on", "paper", "measured", "difference", "status")

_NAMES = {
    "kinetics400": "Kinetics-400",
    "kinetics200": "Kinetics-200",
    "ucf101": "UCF101",
    "hmdb51": "HMDB51",
    "ssv2": "SSv2",
    "ava": "AVA",
    "r3d18": "ResNet3D-18",
    "r3d50": "ResNet3D-50",
    "r3d101": "ResNet3D-101",
    "r2plus1d18": "R(2+1)D-18",
    "s3dg": "S3D-G",
    "linear": "linear",
    "finetune": "finetuned",
    "retrieval": "retrieval",
    "supervised": "supervised",
    "detection": "detection",
    "top1": "top-1",
    "top5": "top-5",
    "sce": "SCE",
    "sce_baseline": "SCE baseline",
    "byol": "BYOL",
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
    "mean_class_accuracy": "mean class accuracy",
    "linear_top1": "linear probe top-1",
    "linear_top5": "linear probe top-5",
    "linear_mean_class": "linear probe mean class",
    "knn_top1": "kNN top-1",
    "knn_top5": "kNN top-5",
    "one_view_top1": "1 view top-1",
    "one_view_top5": "1 view top-5",
    "one_view_mean_class_accuracy": "1 view mean class",
    "feature_std": "feature std",
    "effective_rank": "effective rank",
}


def describe_evaluation(result: Result) -> str:
    """How a result was measured, in one line; for a mean, what the splits share and each split."""
    if not result.parts:
        return ", ".join(_evaluation_words(result))
    words = [_evaluation_words(part) for part in result.parts]
    shared = [word for word in words[0] if all(word in others for others in words)]
    lines = [", ".join(shared)] if shared else []
    for part, own in zip(result.parts, words, strict=True):
        top1 = part.metric("top1")
        value = [] if top1 is None else [_percent(top1)]
        rest = [word for word in own if word not in shared]
        lines.append(f"split {part.split}: {', '.join([*value, *rest])}")
    return "; ".join(lines)


def _evaluation_words(result: Result) -> list[str]:
    protocol = result.protocol
    words = []
    views = views_of(protocol)
    if views is not None:
        words.append(f"{views[0]} x {views[1]} views")
    for name in ("crop_size", "test_size"):
        if isinstance(protocol.get(name), int):
            words.append(f"crop {protocol[name]}")
            break
    counted = (("videos", "videos"), ("bank_videos", "gallery videos"), ("failures", "failed"))
    for name, what in counted:
        value = count_of(protocol.get(name))
        if value is not None:
            words.append(f"{value:,} {what}")
    test = protocol.get("test")
    for source in (protocol, test if isinstance(test, dict) else {}):
        decoder = source.get("decoder_version") or source.get("decoder")
        if decoder:
            words.append(f"decoder {decoder}")
            break
    checkpoint = protocol.get("checkpoint")
    if isinstance(checkpoint, dict):
        digest = str(checkpoint.get("sha256") or "")[:12]
        path = checkpoint.get("path") or checkpoint.get("source") or "?"
        words.append(f"checkpoint {_basename(path)}{f' ({digest})' if digest else ''}")
    for name, what in (("one_view_top1", "1 view top-1"), ("top5", "top-5")):
        fraction = result.metric(name)
        if fraction is not None and not is_trivial(name, protocol.get("num_classes")):
            words.append(f"{what} {_percent(fraction)}")
    return words


def describe_benchmark(result: Result) -> str:
    """The setting that a result states: data, protocol, split, network, clip, pretraining."""
    benchmark = result.benchmark
    if not benchmark:
        return "not stated"
    words = [
        name_of(benchmark.get("dataset")),
        name_of(benchmark.get("protocol")),
        describe_split(result.split),
        name_of(benchmark.get("network")),
        f"{benchmark.get('frames')} x {benchmark.get('size')}²",
    ]
    source = benchmark.get("pretrained_on")
    method = benchmark.get("pretraining")
    trained = "not pretrained" if source is None else f"pretrained on {_or_unknown(source, 'data')}"
    words.append(trained if method is None else f"{trained} by {_or_unknown(method, 'method')}")
    return ", ".join(word for word in words if word)


def _or_unknown(name: Any, what: str) -> str:
    return f"unknown {what}" if name == "unknown" else name_of(name)


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


def describe_papers(papers: Sequence[PaperResult]) -> tuple[str, str, str, str]:
    """Benchmark, network, pretraining and value of the numbers of one cell."""
    paper = papers[0]
    metric = name_of(paper.metric)
    if paper.protocol == "retrieval":
        ranks = [p.metric.removeprefix("retrieval_r") for p in papers]
        metric = f"R@{'/'.join(ranks)}"
    words = [name_of(paper.dataset), name_of(paper.protocol), describe_split(paper.split), metric]
    benchmark = ", ".join(word for word in words if word)
    network = f"{name_of(paper.network)}, {paper.frames} x {paper.size}²"
    source = "none" if paper.pretrained_on is None else name_of(paper.pretrained_on)
    if paper.pretraining is not None:
        source += f", {name_of(paper.pretraining)}"
    return benchmark, network, source, format_values(p.value for p in papers)


def format_metric(name: str, value: float | None) -> str:
    """A fraction in percent, another number as it is; empty for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if name in NOT_FRACTIONS else _percent(value)


def format_values(values: Iterable[float]) -> str:
    """``74.4 / 85.6 / 90.0``."""
    return " / ".join(f"{value:.1f}" for value in values)


def format_differences(values: Sequence[float], papers: Sequence[PaperResult]) -> str:
    """Signed differences of the rounded numbers, so that they agree with what is shown."""
    pairs = zip(values, papers, strict=True)
    return " / ".join(format_signed(round(value, 1) - paper.value) for value, paper in pairs)


def format_signed(points: float) -> str:
    """``+0.4``, ``-0.3``, ``0.0``."""
    text = f"{points:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def _basename(path: Any) -> str:
    return str(path).replace("\\", "/").rsplit("/", 1)[-1]


def name_of(value: Any) -> str:
    """A name of a config or a metric, for readers."""
    if not isinstance(value, str):
        return str(value)
    varied = re.fullmatch(r"(sce(?:_baseline)?)((?:_[a-z_]+_\d+\.\d+)+)", value)
    if varied is not None:  # a row of an ablation, named by what differs
        settings = re.findall(r"_([a-z_]+)_(\d+\.\d+)", varied[2])
        return ", ".join([_NAMES[varied[1]], *(f"{name} {number}" for name, number in settings)])
    recall = re.fullmatch(r"retrieval_(plain_)?r(\d+)", value)
    if recall is not None:
        return f"R@{recall[2]}{' (plain)' if recall[1] else ''}"
    return _NAMES.get(value, value)
