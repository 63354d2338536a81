"""Names and phrases in the report and in the tables of sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sce_video.published import read_published
from sce_video.published.paper_results import PRETRAININGS, PaperResult
from sce_video.reporting.comparability import unit_of, views_of
from sce_video.reporting.result_files import Result
from sce_video.utils.metric_names import NOT_FRACTIONS, is_trivial
from sce_video.utils.records import at

#: Names of datasets, networks, methods and metrics, and titles of tables in the paper, by key.
_NAMES = {row["key"]: row["name"] for row in read_published("names.csv")}
_NAMES |= {key: row["name"] for key, row in PRETRAININGS.items()}


def name_of(value: Any) -> str:
    """Return the name of a dataset, network, pretraining, metric or table for readers.

    An unknown key is returned as text.
    """
    if recall := re.fullmatch(r"retrieval_(plain_)?r(\d+)", str(value)):
        return f"R@{recall[2]}{' (plain)' if recall[1] else ''}"
    if shots := re.fullmatch(r"low_shot_map_(\d+)", str(value)):
        return f"mAP, {shots[1]} images per class"
    return _NAMES.get(str(value), str(value))


def describe_evaluation(result: Result) -> str:
    """Describe how a result was measured. For a mean, also describe each split."""
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
    sizes = (result.at(name, int) for name in ("crop_size", "test_size"))
    words += [f"crop {size}" for size in sizes if size is not None][:1]
    for name, what in (
        ("videos", unit),
        ("bank_videos", f"gallery {unit}"),
        ("failures", "failed"),
    ):
        count = result.count(name)
        if count is not None:
            words.append(f"{count:,} {what}")
    names = ("decoder_version", "decoder", "test.decoder_version", "test.decoder")
    words += [f"decoder {result.at(name)}" for name in names if result.at(name)][:1]
    if (checkpoint := result.at("checkpoint", dict)) is not None:
        digest = str(at(checkpoint, "sha256") or "")[:12]
        path = str(at(checkpoint, "path") or at(checkpoint, "source") or "?")
        name = path.replace("\\", "/").rsplit("/", 1)[-1]  # the path may be a Windows path
        words.append(f"checkpoint {name} ({digest})" if digest else f"checkpoint {name}")
    places = ("checkpoint.training.foreign_classes", "foreign_classes")
    own = [str(entry) for place in places for entry in result.at(place, list) or []]
    words += [f"own parts: {', '.join(dict.fromkeys(own))}"] if own else []
    for name, what in (("one_view_top1", "1 view top-1"), ("top5", "top-5")):
        if not is_trivial(name, result.at("num_classes")) and result.metric(name) is not None:
            words.append(f"{what} {format_metric(name, result.metric(name))}")
    return words


def describe_benchmark(result: Result) -> str:
    """Describe the setting of a result: data, protocol, split, network, pretraining."""
    setting = result.benchmark
    if setting is None:
        return "not stated"
    source, method = setting.pretrained_on, setting.pretraining
    data = "unknown data" if source == "unknown" else name_of(source)
    trained = "not pretrained" if source is None else f"pretrained on {data}"
    if method is not None:
        trained += f" by {'unknown method' if method == 'unknown' else name_of(method)}"
    words = [
        describe_test(result),
        name_of(setting.network),
        _clip(setting.frames, setting.size),
        trained,
    ]
    return ", ".join(word for word in words if word)


def describe_test(result: Result) -> str:
    """Describe the dataset, protocol and split of a result."""
    setting = result.benchmark
    words = [] if setting is None else [name_of(setting.dataset), name_of(setting.protocol)]
    return ", ".join(word for word in [*words, describe_split(result.split)] if word)


def describe_split(split: int | str | None) -> str:
    """Return ``split 1`` or ``mean of 3 splits``; empty if the dataset has only one split."""
    if split is None or split == "val":
        return ""
    return f"split {split}" if isinstance(split, int) else f"{split} splits"


@dataclass(frozen=True)
class PaperTexts:
    """Texts about a number of the paper, or about R@1, R@5 and R@10 of a retrieval together.

    Attributes:
        benchmark: Dataset, protocol, split and metric.
        network: Network and clip.
        source: Data, method and epochs of the pretraining.
        value: Percentages as printed: ``74.4 / 85.6 / 90.0``.
    """

    benchmark: str
    network: str
    source: str
    value: str


def describe_metric(papers: Sequence[PaperResult]) -> str:
    """Return the name of the numbers' metric: ``top-1``, ``R@1/5/10``."""
    if papers[0].protocol == "retrieval":
        return f"R@{'/'.join(p.metric.removeprefix('retrieval_r') for p in papers)}"
    return name_of(papers[0].metric)


def describe_papers(papers: Sequence[PaperResult]) -> PaperTexts:
    """Describe the paper's numbers that share a setting."""
    paper = papers[0]
    words = [name_of(paper.dataset), name_of(paper.protocol), describe_split(paper.split)]
    words.append(describe_metric(papers))
    source = "none" if paper.pretrained_on is None else name_of(paper.pretrained_on)
    if paper.pretraining is not None:
        source += f", {name_of(paper.pretraining)}"
    if paper.pretraining_epochs is not None:
        source += f", {paper.pretraining_epochs} epochs"
    return PaperTexts(
        benchmark=", ".join(dict.fromkeys(word for word in words if word)),
        network=f"{name_of(paper.network)}, {_clip(paper.frames, paper.size)}",
        source=source,
        value=format_values((p.value for p in papers), papers),
    )


def _clip(frames: Any, size: Any) -> str:
    """Return ``8 x 224²`` or, for an image, ``224²``."""
    return f"{size}²" if frames == 1 else f"{frames} x {size}²"


def format_metric(name: str, value: float | None) -> str:
    """Format a fraction in percent, and any other number unchanged; empty for None."""
    if value is None:
        return ""
    return f"{value:.2f}" if name in NOT_FRACTIONS else f"{100 * value:.1f}"


def format_with_interval(name: str, result: Result) -> str:
    """Format a metric with its interval, if the file states one: ``84.2 [81.9, 86.4]``."""
    value = format_metric(name, result.metric(name))
    if name not in result.intervals or not value:
        return value
    return f"{value} [{', '.join(format_metric(name, end) for end in result.intervals[name])}]"


def format_values(values: Iterable[float], papers: Sequence[PaperResult]) -> str:
    """Format values with the paper's decimals: ``74.4 / 85.6 / 90.0``."""
    pairs = zip(values, papers, strict=True)
    return " / ".join(f"{value:.{paper.decimals}f}" for value, paper in pairs)


def format_difference(values: Iterable[float], papers: Sequence[PaperResult]) -> str:
    """Format the differences of numbers, which are rounded first: ``+0.7 / -0.3 / 0.0``."""
    pairs = zip(values, papers, strict=True)
    points = ((round(value, p.decimals) - p.value, p.decimals) for value, p in pairs)
    return " / ".join(format_signed(*point) for point in points)


def format_signed(points: float, decimals: int = 1) -> str:
    """Format a difference: ``+0.4``, ``-0.3``, ``0.0``."""
    text = f"{points:+.{decimals}f}"
    return text if float(text) else text[1:]
