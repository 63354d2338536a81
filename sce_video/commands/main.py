"""The command ``sce-video`` with its sub-commands."""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import sys
from collections.abc import Sequence

from sce_video.version import __version__

#: Sub-commands by task: the function in ``sce_video.commands`` and its description for the help
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "learn": {
        "pretrain": ("pretrain.main", "train a network on a folder of videos, without labels"),
        "finetune": ("finetune.main", "train and test a classifier on labelled videos"),
        "train": ("train.main", "train with a recipe or a config file"),
        "finetune-splits": (
            "finetune_splits.main",
            "finetune and test on every split of a dataset",
        ),
        "sweep": ("sweep.main", "pretrain and evaluate all settings of an ablation table"),
    },
    "measure": {
        "evaluate": ("evaluate.main", "measure a network by kNN, linear probe and retrieval"),
        "choose": ("choose.main", "compare networks on your videos and recommend one"),
        "test": ("test.main", "test a checkpoint with a recipe or a config file"),
        "probe": ("file_protocols.probe_main", "compute kNN and a linear probe from feature files"),
        "retrieve": ("file_protocols.retrieve_main", "compute retrieval (R@k) from feature files"),
        "transfer": (
            "file_protocols.transfer_main",
            "fit linear classifiers and SVMs to image features",
        ),
        "fuse-scores": ("file_protocols.fuse_scores_main", "average the scores of several tests"),
        "report": ("report.main", "write the report of a run, and compare results with the paper"),
        "compare": ("report.compare_main", "compare several runs on one page"),
        "look": ("look.main", "show which parts of frames support a class"),
    },
    "find": {
        "index": ("index.main", "build or update the search index of a folder"),
        "search": ("search.main", "find similar videos; --serve opens a search page"),
        "embed": ("embed.main", "write one feature vector per video to a file"),
        "predict": ("predict.main", "classify new videos with a finetuned classifier"),
        "curate": ("curate.main", "find near-duplicates, outliers and a diverse subset"),
    },
    "prepare": {
        "demo": ("demo.main", "try everything on generated videos, in minutes"),
        "doctor": ("doctor.main", "check packages, decoders, GPU and videos"),
        "prepare": ("prepare.main", "write the annotation lists of a dataset"),
        "verify": ("verify.main", "decode every file and list the ones with problems"),
        "repack": ("repack.main", "re-encode videos for fast random access"),
        "import": ("import_table.main", "store repacked videos in a table"),
    },
    "connect": {
        "encoder": ("encoder.main", "turn a third-party model into a run"),
        "export": ("export.main", "export a network (ONNX, ...) or an index"),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}
_HELP = ("-h", "--help", "help")


def usage() -> str:
    """Return the help, which fits on one page."""
    width = max(map(len, COMMANDS))
    about = "Self-supervised learning on videos: pretrain a network without labels, and use it."
    lines = [about, "", "usage: sce-video COMMAND [options]", ""]
    for group, commands in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<{width}}  {text}" for name, (_, text) in commands.items()]
    lines += [
        "",
        "'sce-video COMMAND --help' lists the options of a command, and 'sce-video --version'",
        "prints the version. No videos at hand? Run 'sce-video demo'. With a folder of videos:",
        "",
        "  sce-video pretrain VIDEOS --out RUN",
        "  sce-video index VIDEOS --checkpoint RUN --out INDEX",
        "  sce-video search --serve INDEX",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command, and return its exit status.

    The status is 0 for the help and ``--version``, 2 for an unknown command, and 1 if a required
    package is missing or has an unsuitable version.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in _HELP:
        print(usage())
        return 0
    name, *rest = words
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        meant = f"Did you mean {near[0]}?" if near else "sce-video --help lists all commands"
        if name.startswith("-"):
            meant = "Options must follow the name of a command"
        print(f"sce-video: error: there is no command {name!r}. {meant}", file=sys.stderr)
        return 2
    from sce_video.dependencies import check_dependencies  # not needed to print the help

    try:
        check_dependencies()
    except ImportError as error:
        print(f"sce-video: error: {error}", file=sys.stderr)
        return 1
    if argv is None:  # makes the exit faster, because imports are not garbage-collected
        atexit.register(gc.freeze)
    module, _, function = COMMANDS[name][0].partition(".")
    before, sys.argv[0] = sys.argv[0], f"sce-video {name}"  # shown in usage and errors
    try:
        return getattr(importlib.import_module(f"sce_video.commands.{module}"), function)(rest)
    finally:
        sys.argv[0] = before
