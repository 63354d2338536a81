"""A command line and the Python call of its name are the same call."""

from __future__ import annotations

import importlib
import inspect
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest

import sce_video
from sce_video import _COMMANDS
from sce_video.commands.main import COMMANDS
from sce_video.options.declare import spec_of

#: Command lines, and the arguments of the Python function with the same name
CALLS = {
    "pretrain V --out R --from hf:a/b --freeze 2 --frames 16 --lr 1 --no-memory --track wandb": {
        "videos": "V",
        "out": "R",
        "start": "hf:a/b",
        "freeze": 2,
        "frames": 16,
        "lr": 1,
        "memory": False,
        "track": ["wandb"],
    },
    "pretrain V --out R --method distill --teacher T --seeds 0 2 --keep best --all-files": {
        "videos": "V",
        "out": "R",
        "method": "distill",
        "teacher": "T",
        "seeds": [0, 2],
        "keep": "best",
        "all_files": True,
    },
    "pretrain --out R --resume --seeds 0 1 --seeds 2 --mirror s3://b/r": {
        "out": "R",
        "resume": True,
        "seeds": (0, 1, 2),
        "mirror": "s3://b/r",
    },
    "finetune none --train c.csv --out R --fold-column f=2 --few 3 --crops 3 --recipe r": {
        "source": "none",
        "recipe": "r",
        "train": "c.csv",
        "out": "R",
        "fold_column": "f=2",
        "few": 3,
        "crops": 3,
    },
    "finetune RUN --train T --test E --out R --group-column g --route frozen": {
        "source": "RUN",
        "train": "T",
        "test": "E",
        "out": "R",
        "group_column": "g",
        "route": "frozen",
    },
    "train c.py --resume --amp --track wandb --track mlflow --cfg-options a=1 b.c=x=y": {
        "config": "c.py",
        "resume": "auto",
        "amp": "bfloat16",
        "track": ("wandb", "mlflow"),
        "cfg_options": ["a=1", "b.c=x=y"],
    },
    "train c.py --data-root V --train-list l.txt --classes n.txt --print --launcher slurm": {
        "config": "c.py",
        "data_root": "V",
        "train_list": "l.txt",
        "classes": "n.txt",
        "print_only": True,
        "launcher": "slurm",
    },
    "sweep a b --out O --points x --seeds 3 4 --shard 2/4 --list": {
        "sweeps": ["a", "b"],
        "out": "O",
        "points": ["x"],
        "seeds": (3, 4),
        "shard": "2/4",
        "list_steps": True,
    },
    "probe --test q.npz --group-pattern (a) --folds 4 --protocols knn time --k 7 --pairs ssv2": {
        "test": "q.npz",
        "group_pattern": "(a)",
        "folds": 4,
        "protocols": ["knn", "time"],
        "k": 7,
        "pairs": "ssv2",
    },
    "retrieve --query q.npz --bank b.npz --ks 1 5 --neighbours n.npz": {
        "query": "q.npz",
        "bank": "b.npz",
        "ks": (1, 5),
        "neighbours": "n.npz",
    },
    "transfer svm --train a.npz --val b.npz --test c.npz --labels L --shots 4 full --draws 2": {
        "protocol": "svm",
        "train": "a.npz",
        "val": "b.npz",
        "test": "c.npz",
        "labels": "L",
        "shots": [4, "full"],
        "draws": 2,
    },
    "transfer linear --set dtd --train a.npz --test c.npz --c 0.5": {
        "protocol": "linear",
        "set": "dtd",
        "train": "a.npz",
        "test": "c.npz",
        "c": 0.5,
    },
    "fuse-scores a.npz b.npz --weights 2 1 --json f.json": {
        "scores": ["a.npz", "b.npz"],
        "weights": (2, 1),
        "json": "f.json",
    },
    "finetune-splits C --splits 1 3 --pretrained random --seed 3 --cfg-options a=1": {
        "config": "C",
        "splits": ["1", "3"],
        "pretrained": "random",
        "seed": 3,
        "cfg_options": ["a=1"],
    },
    "choose V --among R efficientnet-lite0:all --out D --labels folders --group-pattern (a)": {
        "videos": "V",
        "among": ["R", "efficientnet-lite0:all"],
        "out": "D",
        "labels": "folders",
        "group_pattern": "(a)",
    },
    "choose V --out D --labels c.csv --group-column g --folds 5 --budget 90s --workers 2": {
        "videos": "V",
        "out": "D",
        "labels": "c.csv",
        "group_column": "g",
        "folds": 5,
        "budget": "90s",
        "workers": 2,
    },
    "evaluate R --test V --group-pattern (a) --folds loo --protocols knn time --pairs ssv2": {
        "run": "R",
        "test": "V",
        "group_pattern": "(a)",
        "folds": "loo",
        "protocols": ["knn", "time"],
        "pairs": "ssv2",
    },
    "evaluate R --test c.csv --group-column person --folds 5 --out r.json --no-random": {
        "run": "R",
        "test": "c.csv",
        "group_column": "person",
        "folds": 5,
        "out": "r.json",
        "no_random": True,
    },
    "test C R --data-root D --test-list L --cfg-options a=1 b.c=[2] --dump s.npz": {
        "config": "C",
        "checkpoint": "R",
        "data_root": "D",
        "test_list": "L",
        "cfg_options": ["a=1", "b.c=[2]"],
        "dump": "s.npz",
    },
    "report W r.json --out O --videos 0": {"sources": ["W", "r.json"], "out": "O", "videos": 0},
    "compare A B --out c.html": {"runs": ["A", "B"], "out": "c.html"},
    "look R --query a.mp4 --key b.mp4 --cell 2,3 --scale -1 1 --out l.png": {
        "checkpoint": "R",
        "query": "a.mp4",
        "key": "b.mp4",
        "cell": "2,3",
        "scale": (-1, 1),
        "out": "l.png",
    },
    "look C a.mp4 b.mp4 --class run --at 0.5 --out l.html": {
        "checkpoint": "C",
        "videos": ["a.mp4", "b.mp4"],
        "class_name": "run",
        "at": 0.5,
        "out": "l.html",
    },
    "predict R a.mp4 V --windows 2s --threshold 0.4 --html p.html": {
        "checkpoint": "R",
        "videos": ["a.mp4", "V"],
        "windows": "2s",
        "threshold": 0.4,
        "html": "p.html",
    },
    "curate I --out O --copies short late --motion --prefer bitrate --workers 0": {
        "source": "I",
        "out": "O",
        "copies": ["short", "late"],
        "motion": 0.05,
        "prefer": ("bitrate",),
        "workers": 0,
    },
    "embed V --checkpoint R --out f.npz --windows 5s --shots --clips 2": {
        "videos": "V",
        "checkpoint": "R",
        "out": "f.npz",
        "windows": "5s",
        "shots": True,
        "clips": 2,
    },
    "embed V --checkpoint R --out f.npz --cfg-options a.b=1 c=2": {
        "videos": "V",
        "checkpoint": "R",
        "out": "f.npz",
        "cfg_options": ["a.b=1", "c=2"],
    },
    "embed --config c.py --checkpoint random --out f.npz --part bank --workers 0": {
        "config": "c.py",
        "checkpoint": "random",
        "out": "f.npz",
        "part": "bank",
        "workers": 0,
    },
    "index V --out I --checkpoint R --clips 2 --timeout 5 --table": {
        "videos": "V",
        "out": "I",
        "checkpoint": "R",
        "clips": 2,
        "timeout": 5,
        "table": True,
    },
    "encoder M --out R --pool mean --fps 4 --recipe a b": {
        "model": "M",
        "out": "R",
        "pool": "mean",
        "fps": 4,
        "recipe": ("a", "b"),
    },
    "export I --to parquet --out v.parquet --neighbours 0 --no-thumbnails": {
        "source": "I",
        "to": "parquet",
        "out": "v.parquet",
        "neighbours": 0,
        "no_thumbnails": True,
    },
    "search a.mp4 b.mp4@1-2 --not c.mp4 --index I -k 3 --weights 1 0 2 --no-html": {
        "video": ["a.mp4", "b.mp4@1-2"],
        "unlike": "c.mp4",
        "index": "I",
        "k": 3,
        "weights": (1, 0, 2),
        "no_html": True,
    },
    "search --serve I --port 80 --no-open": {"serve": "I", "port": 80, "no_open": True},
    "search --serve --index I": {"serve": "", "index": "I"},
    "index V --out I --check": {"videos": "V", "out": "I", "check_only": True},
    "prepare kinetics R --k200 --k200-ids a b --no-check --workers 2": {
        "name": "kinetics",
        "root": "R",
        "k200": True,
        "k200_ids": ["a", "b"],
        "no_check": True,
        "workers": 2,
    },
    "prepare ava R --detections a b --min-score 1 --out O": {
        "name": "ava",
        "root": "R",
        "detections": ("a", "b"),
        "min_score": 1,
        "out": "O",
    },
    "prepare toy_actions R --train 12 --size 32": {"root": "R", "train": 12, "size": 32},
    "prepare digits R": {"root": "R"},
    "demo --out D --minutes 0.5 --method sce --no-serve": {
        "out": "D",
        "minutes": 0.5,
        "method": "sce",
        "serve": False,
    },
    "doctor --videos V --report": {"videos": "V", "report": True},
    "doctor --index I": {"index": "I"},
    "repack V O --crf auto --short-side none --preset slow": {
        "source": "V",
        "destination": "O",
        "short_side": None,
        "preset": "slow",
    },
    "repack l.txt --to v.lance --crf 20 --data-root D": {
        "source": "l.txt",
        "to": "v.lance",
        "crf": 20.0,
        "data_root": "D",
    },
    "import V s3://b/v.lance --retry-failed --workers 3": {
        "source": "V",
        "table": "s3://b/v.lance",
        "retry_failed": True,
        "workers": 3,
    },
    "verify V --classes c.txt --min-frames 4 --timeout 5 --all-files": {
        "source": "V",
        "classes": "c.txt",
        "min_frames": 4,
        "timeout": 5,
        "all_files": True,
    },
}
#: Functions with a different name, because Python reserves ``import`` and names have no dashes, and
#: the functions of two generated datasets
NAMES = {
    "import": "import_videos",
    "fuse-scores": "fuse_scores",
    "finetune-splits": "finetune_splits",
    "prepare toy_actions": "prepare_toy_actions",
    "prepare digits": "prepare_digits",
}
#: Commands without an entry above
NOT_YET = {*COMMANDS} - {line.split()[0] for line in CALLS}


def name_of(line):
    """Return the name of the Python function for a command line."""
    return next((NAMES[words] for words in NAMES if line.startswith(words)), line.split()[0])


class ReachedError(Exception):
    """Error that stands in for a function, to show with which options it was called."""

    def __init__(self, options):
        super().__init__(options)
        self.options = options


def imported(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"sce_video.{module}"), name)


@pytest.mark.parametrize("line", CALLS)
def test_the_command_line_and_python_call_one_function_with_equal_options(line, monkeypatch):
    command, *words = shlex.split(line)
    name = name_of(line)
    options, function = _COMMANDS[name]

    def note(given, *_arguments):
        raise ReachedError(given)

    imported(function)  # the module must be imported before the name in it is replaced
    monkeypatch.setattr(f"sce_video.{function}", note)
    main = imported("commands." + COMMANDS[command][0])
    with pytest.raises(ReachedError) as by_words:
        main(words)
    with pytest.raises(ReachedError) as by_keywords:
        getattr(sce_video, name)(**CALLS[line])
    assert type(by_words.value.options) is imported(options)
    assert by_words.value.options == by_keywords.value.options


def test_every_function_of_a_command_is_called():
    assert {*map(name_of, CALLS)} == {*_COMMANDS}


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_signature_and_the_documentation_name_every_option(name):
    call, options = getattr(sce_video, name), imported(_COMMANDS[name][0])
    names = {declared.name for declared in fields(options)}
    assert {*inspect.signature(call).parameters} == names and call.__name__ == name
    assert all(f"    {option}: " in call.__doc__ for option in names)
    assert len(options.examples) >= (1 if name in NAMES.values() else 3)
    assert all(spec_of(declared).help for declared in fields(options))


@pytest.mark.parametrize("command", sorted({*COMMANDS} - NOT_YET))
def test_help_imports_no_library(command):
    """The help appears within a tenth of a second, most of which NumPy alone would take."""
    code = "import sys\nfrom sce_video.commands.main import COMMANDS\nimport importlib\n"
    code += "name, _, function = COMMANDS[sys.argv[1]][0].partition('.')\n"
    code += "main = getattr(importlib.import_module('sce_video.commands.' + name), function)\n"
    code += "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
    code += "sys.exit(', '.join({'numpy', 'torch', 'mmengine', 'av'} & {*sys.modules}) or 0)\n"
    done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\nexamples:\n  sce-video " in done.stdout
