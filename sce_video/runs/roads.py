"""The road of a pretraining: distil a teacher, continue from a network, or start from scratch."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass

from sce_video.options.training import PretrainOptions
from sce_video.runs.choices import Machine, default_method
from sce_video.runs.folder_facts import FolderFacts
from sce_video.utils.run_files import PUBLIC_TEACHER, has_public_teacher

DISTILL = "distill"
#: Short side in pixels from which the public teacher is used. Its input has 224 pixels, so smaller
#: videos would be enlarged more than twice.
_LEAST_SIDE = 112
#: Fewer videos than these are too few to learn from scratch in hours: J-HMDB has 928, and the
#: smallest set of the paper 240,000. Where the limit lies in between has not been measured.
_FEW_VIDEOS = 10_000


@dataclass(frozen=True)
class Road:
    """How a network is pretrained, and why.

    Attributes:
        method: Method of pretraining.
        why: Clause that follows the name of the method in the plan; empty for a given method.
        teacher: Teacher of a distillation.
        remarks: Sentences for the user.
    """

    method: str
    why: str = ""
    teacher: str | None = None
    remarks: tuple[str, ...] = ()


def choose_road(
    options: PretrainOptions, facts: FolderFacts, machine: Machine, given: Collection[str]
) -> Road:
    """Choose between distillation, continuing, and training from scratch.

    What the user gave decides: ``--teacher`` distils, ``--from`` continues, and a method that was
    given is used. Otherwise the network is distilled from an image network if its weights are
    installed, because that gains forty points over training from scratch on real footage
    (docs/results.md). Nothing is downloaded.

    Args:
        options: Options of the command.
        facts: Facts about the videos.
        machine: Machine that trains.
        given: Names of the settings that the user gave.
    """
    if options.named_method == DISTILL:
        return Road(DISTILL, teacher=options.teacher or PUBLIC_TEACHER)
    if options.method is not None:
        return Road(options.method, remarks=() if options.start else _warn(options, facts))
    method, why = default_method(machine, given)
    if options.start is not None:
        return Road(method, why)
    of_network = sorted({"width", "hidden", "embedding", "queue", "momentum"} & {*given})
    if of_network:
        return Road(method, why, remarks=_warn(options, facts))
    if not has_public_teacher():
        return Road(method, why, remarks=_warn(options, facts))
    if facts.short_side < _LEAST_SIDE:
        remark = (
            f"{PUBLIC_TEACHER} is installed and is not used as a teacher, because the videos have "
            f"a short side of {facts.short_side} pixels and it needs {_LEAST_SIDE} or more. To use "
            f"it all the same, add --teacher {PUBLIC_TEACHER}"
        )
        return Road(method, why, remarks=(remark,))
    remarks = (
        "a larger teacher may be better. hf:facebook/dinov2-small or another model of a hub "
        "needs pip install 'sce-video[hf]' and a download, and several times as long for its "
        "features (docs/encoders.md)",
        "classes that differ in their motion alone may be learned better from scratch: "
        "--method simclr. With some labels, sce-video choose says which network suits your videos",
    )
    return Road(DISTILL, f": {PUBLIC_TEACHER} is installed", PUBLIC_TEACHER, remarks)


def _warn(options: PretrainOptions, facts: FolderFacts) -> tuple[str, ...]:
    """State the result of training from scratch on a real set, and a command that does better."""
    if facts.num_videos >= _FEW_VIDEOS:
        return ()
    install = "" if has_public_teacher() else "pip install 'sce-video[teacher]', then "
    videos = shlex.quote(str(options.videos))
    return (
        f"training from scratch on {facts.num_videos:,} videos may learn little. On J-HMDB, 928 "
        "clips of films, 18 minutes reached 14 % in a linear probe, as random weights do (13 %). "
        f"A student of an image network reached 60 % in 7 minutes: {install}sce-video pretrain "
        f"{videos} --out {shlex.quote(options.out)} --teacher {PUBLIC_TEACHER}",
    )
