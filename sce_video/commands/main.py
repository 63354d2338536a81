"""The command ``sce-video``: one name per task, each thin over the code of ``tools``."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from sce_video.version import __version__

#: Sub-command: function below ``sce_video.commands``, what it does; in the order of a user's work.
COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("doctor.main", "is this machine fit for it? packages, decoders, GPU, your videos"),
    "pretrain": ("pretrain.main", "learn from a folder of videos, labels not needed"),
    "evaluate": ("evaluate.main", "kNN, linear probe and retrieval of a run on labelled videos"),
    "encoder": (
        "encoder.main",
        "a model of transformers as the folder of a run, and recipes that train it further",
    ),
    "embed": ("embed.main", "a feature of every video in a folder, in one .npz file"),
    "index": ("index.main", "build or update the search index of a folder"),
    "search": ("search.query_main", "videos of an index that resemble one; --serve: a page"),
    "curate": (
        "curate.main",
        "near-duplicates, outliers, clusters, a diverse subset: lists to train on",
    ),
    "look": ("look.main", "where a network looks: what speaks for a class, or resembles a frame"),
    "export": (
        "export.main",
        "a network as ONNX, safetensors or program; videos and map for Embedding Atlas, ...",
    ),
    "predict": ("predict.main", "the classes of new videos, by a finetuned classifier"),
    "prepare": ("prepare.main", "annotation lists of a data set from its official downloads"),
    "repack": ("repack.main", "re-encode videos for fast random access"),
    "import": (
        "import_table.main",
        "repacked videos into one table, for object storage and faster reading",
    ),
    "verify": ("verify.main", "decode every file completely, list those with problems"),
    "sweep": ("sweep.main", "a table of pretrainings and their evaluations, resumable"),
    "report": ("report.main", "the page of a run; all results beside the paper's numbers"),
    "compare": ("compare.main", "curves, results and settings of several runs on one page"),
    "train": ("train.main", "train with a recipe or a config file"),
    "test": ("test.main", "test a checkpoint with a recipe or a config file"),
}
_HELP = ("-h", "--help", "help")


def usage() -> str:
    """One page of help."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "Self-supervised learning on videos.",
            "",
            "usage: sce-video COMMAND ...",
            "",
            *lines,
            "",
            "sce-video COMMAND --help tells the options, --version the version. To start, with a",
            "folder of videos:",
            "",
            "  sce-video pretrain VIDEOS --out RUN",
            "  sce-video index VIDEOS --checkpoint RUN --out INDEX",
            "  sce-video search --serve INDEX",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; the status is 0, or 2 for a wrong command line."""
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
        meant = f", meant {near[0]}?" if near else ""
        print(f"sce-video: error: no command {name!r}{meant} (sce-video --help)", file=sys.stderr)
        return 2
    module, function = COMMANDS[name][0].split(".")
    before, sys.argv[0] = sys.argv[0], f"sce-video {name}"  # for usage and errors
    try:
        # Imported here: a page of help must not wait for torch.
        return getattr(importlib.import_module(f"sce_video.commands.{module}"), function)(rest)
    finally:
        sys.argv[0] = before
