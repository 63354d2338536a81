"""Errors in a command line are explained before the heavy libraries are imported."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from helpers.small_index import HEADER

from sce_video.commands.main import COMMANDS
from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.inheritance import read_config
from sce_video.engine.recipes import FINETUNING, find_recipe, methods
from sce_video.find.store import FileRecord, FileStore
from sce_video.models.backbones.hf_encoder import FAMILIES
from sce_video.options.connect import POOLS
from sce_video.options.declare import spec_of
from sce_video.options.training import DISTILLATION, SETTINGS, FinetuneOptions, PretrainOptions

#: Command lines, and a part of the error. V: videos, R: run, I: index, N: missing, E: empty, L and
#: M: two classes each
CASES = {
    "demo --minutes 0": "--minutes must be above 0, got 0",
    "doctor --videos N": "no folder or table of videos at N",
    "doctor --index E": "there is no index in E. Give the folder that sce-video index writes",
    "pretrain N --out O": "there is no folder 'N'",
    "pretrain N.lance --out O": "no table at N.lance",
    "pretrain V --out O --epoch 5": "no option --epoch. Did you mean --epochs?",
    "pretrain V --out O --frames many": "--frames must be a whole number, got 'many'",
    "pretrain V --out O --method sec": "--method must be one of byol, distill",
    "pretrain V --out O --hours -1": "--hours must be above 0, got -1",
    "pretrain V --out O --hours 1 --epochs 5": "--hours cannot be combined with --epochs",
    "pretrain V --out O --seeds 0 0": "must be one or more different numbers, got (0, 0)",
    "pretrain V --out O --seeds 0 --seed 1": "--seed cannot be combined with --seeds. Remove",
    "pretrain --out O": "VIDEOS, a folder or a table, is missing. Only",
    "pretrain --out O --resume": "cannot resume: O contains no training run",
    "pretrain V --out O --resume": "reads everything from RUN/run.json. Remove VIDEOS",
    "pretrain --out O --resume --overwrite": "--resume cannot be combined with --overwrite",
    "pretrain V --out O --queue 9 --method simclr": "not a setting of --method simclr",
    "finetune N --train L --out O": "no run, checkpoint or model of transformers (hf:NAME) at N",
    "finetune R --train L --out O --width 8": "--width can be set only for random weights",
    "finetune R --train N --out O": "there is no folder, list or CSV file 'N'",
    "finetune R --train V --out O": "V has no classes, but a classifier needs two or more",
    "finetune none --train L --test M --out O": "only in the first 'b', only in the second 'c'",
    "finetune none --train L --few 3 --out O": "L has only 2 videos of the class 'a'",
    "finetune none --train c.csv --out O": "c.csv has no column label",
    "finetune none --train L --test L --fold-column f --out O": "cannot be combined with --test",
    "finetune none --train L --out O --frozn 4": "no option --frozn. Did you mean --frozen?",
    "finetune none --train L --out O --crops 2": "argument --crops: invalid choice: 2",
    "finetune none --out O": "SOURCE (a run, a checkpoint, ..., or none) or --train is missing",
    "finetune R --train L --out O --resume": "from RUN/run.json. Remove SOURCE",
    "finetune --out O --resume": "cannot resume: O contains no training run",
    "choose N --out O": "there is no folder 'N'",
    "evaluate N --test V --gallery V": "no checkpoint at N",
    "evaluate E --test V --gallery V": "no checkpoint epoch_N.pth or iter_N.pth in E",
    "evaluate R --test V": "Add --gallery, --group-pattern or --group-column",
    "evaluate R --test V --group-column g": "'g' names a column of a CSV file, but V is not",
    "evaluate R --test V --gallery V --data-root V": (
        "--data-root has an effect only with a list or a CSV file"
    ),
    "finetune none --train V --out O --fold-column f": "'f' names a column of a CSV file, but V",
    "evaluate R --test V --group-pattern (": "--group-pattern must be a valid regular expression",
    "pretrain V --out O --method sce --teacher R": "--teacher belongs to --method distill",
    "pretrain V --out O --method byol --objective tokens": "--objective belongs to --method",
    "evaluate R --test V --gallery V --folds 5": "--folds divides groups, which only",
    "evaluate R --test V --group-pattern (a) --folds 1": "--folds must be at least 2, got 1",
    "evaluate R --test V --gallery V --pairs ssv2": "--pairs needs the protocol time",
    "encoder N --out O": "N is neither a folder nor a name on the hub",
    "encoder E --out O --recipe sce_r3d18_folder_smal": "similar names: sce_r3d18_folder_small",
    "embed V --checkpoint R --out o.npz --windows soon": "--windows must be a time like 5s",
    "embed V --checkpoint R --out o.npz --clips 2": "--clips needs --windows, for example",
    "embed V --checkpoint R --out o.npz --windows 2s --ann-file l.txt": "--ann-file cannot be",
    "embed V --checkpoint R --out o.npz --device gpu": "--device must be cpu, cuda or cuda:1",
    "index N --checkpoint R --out O": "there is no folder 'N'",
    "index V --out O": "give --checkpoint, because O has no index",
    "index V --checkpoint R --out O --clips 0": "--clips must be at least 1, got 0",
    "index V --data-root V --checkpoint R --out O": "--data-root needs a list or a CSV file",
    "index c.csv --checkpoint R --out O --windows 2s": "divides whole videos, but c.csv lists",
    "index c.csv --checkpoint R --out O": "c.csv has no column label",
    "index V --checkpoint R --out O --column x": "--column names a column of a table",
    "search V/a.mp4@5-3 --index I": "5-3 of V/a.mp4 ends at 3 s, before its start at 5 s",
    "search V/a.mp4@3-3 --index I": "of V/a.mp4 has no length: it starts and ends at 3 s. Give",
    "search N --index I": "no video at N",
    "search V --index I": "V is a folder. A query is a video",
    "search V/a.mp4": "there is no index to search. Add --index INDEX",
    "search I --text word": "--text also needs an index. Use --text WORDS --index I",
    "search --index I": "nothing to search for. Add a VIDEO, an image, --text or --more-like",
    "search --not V/a.mp4 --index I": "only --not to search for. Add a VIDEO",
    "search V/a.mp4 --not N --index I": "no video at N",
    "search V/a.mp4 --weights 1 -1 0 --index I": "--weights must be at least 0, got -1",
    "search V/a.mp4 --where size>3 --index I": "no such column: size",
    "search V/a.mp4 --columns N --index I": "no CSV file with columns at N",
    "search V/a.mp4 --columns c.csv --where x=1 --index I": "The columns in c.csv are: path, kind",
    "search --more-like x --index I": "I/labels.txt has no label 'x'. Its labels are: none",
    "search --serve I --index O": "--serve I and --index O are two indexes. Remove one",
    "search V/a.mp4 --serve I": "a query cannot be combined with --serve",
    "search --serve": "--serve needs the folder of an index",
    "search --serve N": "there is no index in N",
    "curate V --out O": "V is not an index. Give the folder of an index",
    "curate I --out O --motion 1": "must be at least 0 and at most 0.99, got 1",
    "curate I --out O --decisions N": "no file at N",
    "curate I --out O --similarity 2": "must be above 0 and at most 1, got 2",
    "curate I --out O --duplicates none --similarity 0.9": "--similarity has no effect with",
    "look N V/a.mp4 --out o.png": "no checkpoint at N",
    "look R --query V/a.mp4 --key V/a.mp4 --cell 2 --out o.png": "--cell must be mean, best or",
    "export I --to projector --out O --no-embedding": "shows the features. Remove --no-embedding",
    "export I --to fiftyone --out O --labels N": "no annotation file at N",
    "export I --to parquet --out O": "--out must end in .parquet with --to parquet",
    "export R --to onnx --out E.onnx": "E.onnx already exists. Remove it",
    "predict N V": "no checkpoint at N",
    "predict R N": "no video or folder at N",
    "predict R V --views 3": "--views must be CLIPSxCROPS",
    "prepare ucf11 V": "no dataset 'ucf11'. Did you mean ucf101?",
    "prepare kinetics E --k200-ids a b": "--k200-ids needs --k200 or --k200-classes",
    "repack N O": "no list or folder at N",
    "repack V": "either DST, an output folder, or --to TABLE is needed",
    "repack V O --crf 70": "crf",
    "repack V O --short-side big": "--short-side must be a whole number or 'none', got 'big'",
    "repack V O --workers 0": "workers",
    "repack V O --preset quick": "quick",
    "repack V O --extensions ogv": "no video",
    "repack V --to t.txt": "--to must be the name of a table, which ends with .lance, got 't.txt'",
    "import N O.lance": "no list or folder at N",
    "import V t.txt": "TABLE must be the name of a table, which ends with .lance, got 't.txt'",
    "verify N": "no list or folder at N",
    "verify V --out table.csv": "--out must end in .tsv or .md",
    "verify V --classes N": "no file of class names at N",
    "sweep N --out O": "no sweep N",
    "sweep video_lambda --out O --shard 3/2": "--shard must be I/N with I from 1 to N",
    "report V --out table.txt": "--out must be a folder or end in .md",
    "report V --html o.pdf": "--html must end in .html",
    "compare R N": "there is no folder N",
    "compare R": "two or more runs are needed",
    "train sce_r3d18_foldr": "similar names: sce_r3d18_folder",
    "train r3d18_folder --cfg-options model": "--cfg-options must be KEY=VALUE",
    "test r3d18_folder N": "no checkpoint at N",
    "test r3d18_folder R --cfg-options model": "--cfg-options must be KEY=VALUE",
    "test r3d18_folder R --test-list N": "no file at N",
    "probe --test N": "either --train or --group-pattern is needed",
    "probe --test N --train I/features.npz": "there is no file N",
    "probe --test N --train N --protocols linear --k 3": "--k belongs to a protocol that",
    "retrieve --query N --bank N": "there is no file N",
    "retrieve --query N --bank N --ks 0": "--ks must be at least 1, got 0",
    "transfer linear --train N --test N": "linear needs either --set or --metric",
    "transfer linear --set dtt --train N --test N": "the paper has no many-shot set 'dtt'",
    "transfer svm --train N --test N": "svm needs --labels",
    "transfer svm --train N --test N --labels E --shots two": "--shots must be a whole number or",
    "fuse-scores N": "fusion needs two or more files of scores",
    "fuse-scores N M --weights 1": "--weights must contain a weight for each of the 2 files",
    "fuse-scores N M": "there is no file N",
    "finetune-splits r3d18_foldr": "similar names: r3d18_folder",
    "finetune-splits r3d18_folder --pretrained N": "no checkpoint at N",
    "finetune-splits r3d18_folder --splits 1 1": "--splits must be one or more different splits",
    "test r3d18_folder R --classes V/a.mp4": "--classes names the labels of a list",
}
#: Command lines that accept a network, which is given a pool that does not exist
_WITH_POOL = (
    *("embed V --checkpoint {} --out o.npz", "evaluate {} --test V --gallery V"),
    *("index V --checkpoint {} --out O", "finetune {} --train L --out O"),
    *("pretrain V --out O --from {}", "pretrain V --out O --method distill --teacher {}"),
    *(
        "choose V --out O --among {}",
        "encoder {} --out O",
        "search V/a.mp4 --index I --checkpoint {}",
    ),
    *("curate V --out O --checkpoint {}", "export {} --to pretrained --out O"),
    *("predict {} V", "search V/a.mp4 --index I --checkpoint {}"),
)
_POOL = "efficientnet-lite0:foo: the pool must be one of mean, mean+absdiff, mean+std"
CASES |= {case.format("efficientnet-lite0:foo"): _POOL for case in _WITH_POOL}
CASES |= {
    "evaluate E:foo --test V --gallery V": "E:foo: the pool must be one of mean",
    "embed V --checkpoint hf:a/b:foo --out o.npz": "hf:a/b:foo: the pool must be one of mean",
    "finetune nowhere:mean --train L --out O": "no run, checkpoint or model",
    "encoder efficientnet-lite0:mean --pool mean --out O": "names a pool. Remove --pool mean",
}
#: Script that forks for every command line, because starting interpreters takes most of the time
_SCRIPT = """
import importlib, io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from sce_video.commands.main import COMMANDS, main

for name, (function, _) in COMMANDS.items():
    importlib.import_module("sce_video.commands." + function.partition(".")[0])
import sce_video.dependencies
for words in json.load(sys.stdin):
    read, write = os.pipe()
    if not os.fork():
        said = io.StringIO()
        sys.argv = ["sce-video"]
        try:
            with redirect_stderr(said), redirect_stdout(io.StringIO()):
                status = main(words)
        except SystemExit as stop:
            status = stop.code
        heavy = [name for name in ("torch", "cv2", "av", "transformers") if name in sys.modules]
        os.write(write, json.dumps([status, said.getvalue(), heavy]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        print(pipe.read() or "null")
    os.wait()
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> dict[str, list]:
    """Return status, stderr and imported libraries of each command line."""
    folder = tmp_path_factory.mktemp("wrong_input")
    labelled = ("L/a/1.mp4", "L/a/2.mp4", "L/b/1.mp4", "L/b/2.mp4", "M/a/1.mp4", "M/c/1.mp4")
    for name in ("V/a.mp4", "R/epoch_1.pth", "E/notes.txt", "E.onnx", *labelled):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).touch()
    (folder / "c.csv").write_text("path,kind\na.mp4,walk\n")
    store = FileStore(folder / "I/features.npz")
    store.file.parent.mkdir()
    store.write(HEADER, {"a.mp4": FileRecord(1, 1, np.ones(2, np.float32))})
    env = {"PYTHONPATH": str(repo), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    words = json.dumps([shlex.split(case) for case in CASES])
    command = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(command, input=words, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


def test_every_command_is_asked():
    assert {case.split()[0] for case in CASES} == set(COMMANDS)


@pytest.mark.parametrize("case", CASES)
def test_answered_before_the_imports(case, answers):
    status, said, heavy = answers[case]
    assert status == 2 and CASES[case] in said and "Traceback" not in said
    name, *rest = case.split()
    of_set = name == "prepare" and f"sce-video prepare {rest[0]}: error: " in said
    assert of_set or f"sce-video {name}: error: " in said.splitlines()[-1]
    # The functions of these commands check the files, and are in the same modules as the readers.
    light = {"av", "cv2"} if name in ("import", "repack", "verify") else set()
    assert not set(heavy) - light


def test_choices_are_those_of_the_heavy_modules():
    """The options repeat the names of the pools, because they must not import the models."""
    pools = {pool for family in FAMILIES.values() for pool in family.pools}
    assert pools == {*POOLS}


@pytest.mark.parametrize("recipe", [*methods().values(), FINETUNING])
def test_every_setting_of_a_recipe_is_an_option(recipe):
    """Each option in a group of settings is also a setting of some recipe."""
    options = FinetuneOptions if recipe == FINETUNING else PretrainOptions
    groups = {SETTINGS.title, DISTILLATION.title}
    names = {field.name for field in fields(options) if spec_of(field).group in groups}
    own = {*available_settings(read_config(find_recipe(recipe)))}
    assert own <= names and (recipe not in (FINETUNING, methods()["sce"]) or names - own <= TAUGHT)


#: Settings that only distillation has
TAUGHT = {"teacher", "teacher_clips", "objective"}
