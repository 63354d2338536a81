"""The command ``sce-video``: one name per task."""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import sys
from collections.abc import Sequence

from sce_video.version import __version__

#: What people come for; of each the sub-commands: the function below ``sce_video.commands`` and
#: what it does.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "learn": {
        "pretrain": ("pretrain.main", "learn from a folder of videos, labels not needed"),
        "finetune": ("finetune.main", "a classifier from a network and labelled videos, tested"),
        "train": ("train.main", "train with a recipe or a config file"),
        "finetune-splits": ("finetune_splits.main", "finetune and test all splits, their mean"),
        "sweep": ("sweep.main", "a table of pretrainings and their evaluations, resumable"),
    },
    "measure": {
        "evaluate": ("evaluate.main", "kNN, linear probe and retrieval on labelled videos"),
        "test": ("test.main", "test a checkpoint with a recipe or a config file"),
        "probe": ("file_protocols.probe_main", "kNN and linear probe of files of features"),
        "retrieve": ("file_protocols.retrieve_main", "R@k of files of features"),
        "transfer": ("file_protocols.transfer_main", "linear classifiers and SVMs on features"),
        "fuse-scores": ("file_protocols.fuse_scores_main", "late fusion of several tests"),
        "report": ("report.main", "the page of a run; all results beside the paper's numbers"),
        "compare": ("report.compare_main", "curves, results and settings of several runs, a page"),
        "look": ("look.main", "where a network looks: what speaks for a class, resembles a frame"),
    },
    "find": {
        "index": ("index.main", "build or update the search index of a folder"),
        "search": ("search.main", "videos of an index that resemble one; --serve: a page"),
        "embed": ("embed.main", "a feature of every video of a folder or a config, one .npz file"),
        "predict": ("predict.main", "the classes of new videos, by a finetuned classifier"),
        "curate": ("curate.main", "near-duplicates, outliers, a diverse subset: lists to train on"),
    },
    "prepare": {
        "demo": ("demo.main", "all of this on generated videos, in minutes: a page opens"),
        "doctor": ("doctor.main", "is this machine fit for it? packages, decoders, GPU, videos"),
        "prepare": ("prepare.main", "annotation lists of a data set from its official downloads"),
        "verify": ("verify.main", "decode every file completely, list those with problems"),
        "repack": ("repack.main", "re-encode videos for fast random access"),
        "import": ("import_table.main", "videos into one table, for object storage and speed"),
    },
    "connect": {
        "encoder": ("encoder.main", "a model of transformers as a run, recipes that train it"),
        "export": ("export.main", "a network as ONNX, safetensors, program; videos for viewers"),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}
_HELP = ("-h", "--help", "help")


def usage() -> str:
    """One page of help."""
    width = max(map(len, COMMANDS))
    lines = ["Self-supervised learning on videos.", "", "usage: sce-video COMMAND ...", ""]
    for group, commands in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<{width}}  {text}" for name, (_, text) in commands.items()]
    lines += [
        "",
        "sce-video COMMAND --help tells the options, --version the version. To start, without",
        "videos: sce-video demo; with a folder of them:",
        "",
        "  sce-video pretrain VIDEOS --out RUN",
        "  sce-video index VIDEOS --checkpoint RUN --out INDEX",
        "  sce-video search --serve INDEX",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns its exit status.

    It is 0 for help and ``--version``, 2 for an unknown command, and 1 where a required package is
    missing or of a version that does not work.
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
        meant = f", meant {near[0]}?" if near else ""
        if name.startswith("-"):
            meant = ": options follow the name of a command"
        print(f"sce-video: error: no command {name!r}{meant} (sce-video --help)", file=sys.stderr)
        return 2
    from sce_video.dependencies import check_dependencies  # takes longer than a page of help

    try:
        check_dependencies()
    except ImportError as error:
        print(f"sce-video: error: {error}", file=sys.stderr)
        return 1
    if argv is None:  # the process ends without a last look through all that torch has imported
        atexit.register(gc.freeze)
    module, _, function = COMMANDS[name][0].partition(".")
    before, sys.argv[0] = sys.argv[0], f"sce-video {name}"  # for usage and errors
    try:
        # Imported here: a page of help must not wait for torch.
        return getattr(importlib.import_module(f"sce_video.commands.{module}"), function)(rest)
    finally:
        sys.argv[0] = before
