"""``sce-video choose``: compare networks on the user's own videos, and recommend one."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sce_video.datasets.named_files import check_out
from sce_video.options.choose import ChooseOptions
from sce_video.options.training import FOLDERS
from sce_video.runs.candidate_videos import ChoiceVideos, in_sampling_order, read_choice_videos
from sce_video.runs.candidates import load_passes, named_candidates
from sce_video.utils.cores import usable_cores

if TYPE_CHECKING:
    from sce_video.runs.candidate_features import CandidateFeatures
    from sce_video.runs.candidate_scores import Decision
    from sce_video.runs.choose_result import ChooseResult

#: Number of groups or videos below which an interval is a rough guess.
_FEW_GROUPS = 50


def choose(options: ChooseOptions) -> ChooseResult:
    """Compare networks on a sample of videos, and write the page and the JSON file.

    Raises:
        FileNotFoundError: If there is no such run or table.
        ValueError: If there are no such videos or labels, or the budget is too small.
        MissingPackageError: If a named network is not installed.
        WriteError: If a file cannot be written.
    """
    begun = time.monotonic()  # the budget counts the imports below, too
    check_out(options.out)
    candidates = named_candidates(options.among)
    listed = read_choice_videos(options)
    # Imported here, so that a wrong name is reported before torch loads.
    from sce_video.runs.candidate_features import TimeBudget, embed_within
    from sce_video.runs.candidate_scores import DECAYS, DECIDES, decide, score_candidates
    from sce_video.runs.choose_result import DATA, PAGE, ChooseResult
    from sce_video.runs.fold_probe import time_probes

    every = in_sampling_order(listed, options)
    passes = load_passes(candidates, options.device)
    budget = TimeBudget(begun, options.seconds)
    sizes = [one.size(candidate) for one in passes for candidate in one.candidates]
    folds = len(np.unique(every.folds)) if every.labelled else 0
    probe_seconds = time_probes(sizes, len(every.classes), folds, DECAYS)
    workers = options.workers or usable_cores()
    found = embed_within(passes, every.paths, budget, workers, probe_seconds, every.least)
    videos, kept, notes = _compared(every, found)
    clips = {candidate: values[kept] for candidate, values in found.clips.items()}
    # The page needs the last tenth of the budget.
    scored = score_candidates(clips, found.costs, videos, begun + 0.9 * budget.seconds)
    scores, notes = scored.scores, [*notes, *filter(None, [scored.note])]
    decision = decide(scores, scored.measured, len(every))
    # Without labels, the order is the user's: a number would suggest a ranking.
    if videos.labelled:
        scores.sort(key=lambda score: score.metrics[DECIDES], reverse=True)
    result = ChooseResult(
        scores=tuple(scores),
        decision=decision,
        command=_next_command(decision, options),
        videos=videos,
        total=len(every),
        failures=tuple(found.failures),
        notes=tuple(notes),
        page=Path(options.out, PAGE),
        data=Path(options.out, DATA),
    )
    result.write(options)
    return result


def _compared(
    every: ChoiceVideos, found: CandidateFeatures
) -> tuple[ChoiceVideos, np.ndarray, list[str]]:
    """Return the videos that can be compared, their rows in the features, and remarks.

    Raises:
        ValueError: If fewer than two classes are left.
    """
    videos, kept, notes = every.subset(found.rows), np.arange(len(found.rows)), []
    if videos.labelled:
        mask = videos.comparable()
        if not mask.all():
            left = Counter(videos.labels[~mask].tolist())
            notes.append(
                f"Left out are {left.total()} videos whose classes ({len(left)} of "
                f"{len(left) + len(np.unique(videos.labels[mask]))}) are in one fold only in this "
                "sample."
            )
            videos, kept = videos.subset(np.flatnonzero(mask)), kept[mask]
        if len(np.unique(videos.labels)) < 2:
            raise ValueError(
                f"{found.tried} videos contain fewer than two classes that are in two folds. Give "
                "a larger --budget, or other groups or folds"
            )
        if not videos.grouped:
            notes.append(
                "No groups are given, so videos of one recording may be compared with each other, "
                "which makes all numbers too high. --group-column names a column of recordings, "
                "scenes or persons."
            )
        units = len(np.unique(videos.groups))
        if units < _FEW_GROUPS:
            what = "groups" if units < len(videos) else "videos"
            notes.append(f"There are {units} {what}, so the intervals are rough.")
    if found.failures:
        notes.append(f"{len(found.failures)} of {found.tried} videos could not be decoded.")
    return videos, kept, notes


def _next_command(decision: Decision, options: ChooseOptions) -> str:
    """Return the command line that uses the recommended network or trains one; empty if neither."""
    chosen = decision.recommended
    if chosen is None:
        # Without a method, an installed image network would teach, which is no better here.
        words = ["pretrain", options.videos, "--out", "RUN", "--method", "simclr"]
        return shlex.join(["sce-video", *words]) if decision.possible else ""
    if options.labels is None:
        words = ["index", options.videos, "--checkpoint", chosen.name, "--out", "INDEX"]
    else:
        words = ["finetune", chosen.name, "--out", "CLASSIFIER", "--train"]
        listed = [options.labels, "--data-root", options.videos]
        words += [options.videos] if options.labels == FOLDERS else listed
        for name in ("group_pattern", "group_column", "fold_column"):
            if (value := getattr(options, name)) is not None:
                words += [f"--{name.replace('_', '-')}", value]
    return shlex.join(["sce-video", *words])
