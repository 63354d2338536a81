"""The pages of the documentation agree with the code: links, files, options, code blocks.

test_reproduce.py runs the commands of docs/reproduce.md. Here bash reads every command of every
page, with the programs replaced, and its options are checked against the config and the tool.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.own_parts import page_files, registries_restored
from helpers.page_commands import blocks, words_of_commands
from helpers.training import make_videos

from sce_video import _COMMANDS
from sce_video.commands.main import COMMANDS
from sce_video.commands.main import main as front_door
from sce_video.engine.config.load import load_config
from sce_video.engine.recipes import find_recipe
from sce_video.evaluation import load_features
from sce_video.options.command_line import Parser
from sce_video.options.declare import flag_names
from sce_video.runs import configs, launch
from sce_video.utils import own_parts
from sce_video.utils.own_parts import own_imports

REPO = Path(__file__).resolve().parents[2]
PAGES = [
    *(REPO / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((REPO / "docs").rglob("*.md")),
]
OWN = ("sce_video", "tools", "configs", "tests", "benchmarks", "docs", "requirements")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.*)", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), re.M
    )
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pages
def test_links_lead_to_files_and_headings(page):
    text = page.read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}: {anchors(file)}"


def expanded(pattern: str) -> Iterator[str]:
    """All words of a pattern with braces: ``{a,b}.py``."""
    found = re.search(r"\{([^{}]+)\}", pattern)
    if found is None:
        yield pattern
        return
    for option in found[1].split(","):
        yield from expanded(pattern[: found.start()] + option + pattern[found.end() :])


@pages
def test_files_that_a_page_names_exist(page):
    for code in re.findall(
        r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    ):
        for word in code.split():
            if not re.match(rf"({'|'.join(OWN)})/", word) or "ROOT" in word:
                continue
            if page.name == "CHANGELOG.md":  # names what is gone, too
                continue
            for pattern in expanded(word.rstrip("/,:")):
                assert list(REPO.glob(pattern)), f"{page.name} names {pattern}"


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command of the bash blocks, after bash has expanded them."""
    for block in blocks(page, "bash"):
        yield from words_of_commands(block)


def source_of(script: str) -> str:
    """The text of a tool or launcher, and of the command that it runs."""
    text = (REPO / script).read_text()
    runs = r"from sce_video\.commands\.(\w+) import main|-m sce_video (\w+)|tools/(train|test)\.py"
    for module in {name for found in re.findall(runs, text) for name in found if name}:
        text += (REPO / f"sce_video/commands/{module}.py").read_text()
        if module in _COMMANDS:  # its options are a class
            path, _, name = _COMMANDS[module][0].rpartition(".")
            options = getattr(importlib.import_module(f"sce_video.{path}"), name)
            text += "".join(f'"{flag}"' for flag in flag_names(options).values())
    return text


@pages
def test_options_of_commands_are_known(page):
    """The tool has every flag, the config every option; words like ``CONFIG`` are not checked."""
    for words in commands(page):
        scripts = [w for w in words if re.fullmatch(r"(tools|benchmarks)/.*\.(py|sh)", w)]
        for script in scripts:
            source = source_of(script)
            for flag in (w for w in words if w.startswith("--")):
                flag = flag.partition("=")[0]
                known = (
                    f'"{flag}"' in source
                    or f'"{flag} ' in source
                    or (script.endswith(".sh") and flag in source)
                )
                assert known or "torchrun" in words, f"{page.name}: {script} has no {flag}"
        configs = [w for w in words if re.fullmatch(r"configs/.*\.py", w)]
        options: list[str] = []
        if "--cfg-options" in words:
            rest = words[words.index("--cfg-options") + 1 :]
            stop = next((i for i, w in enumerate(rest) if w.startswith("--")), len(rest))
            options = [w for w in rest[:stop] if w != "..."]
        for config in configs:
            load_config(REPO / config, options)


@pytest.fixture
def nothing_imported(monkeypatch):
    """The modules of the pages are imported by the tests of their files, further down."""
    monkeypatch.setattr(own_parts, "_import_part", lambda name: None)
    shipped = find_recipe("simclr_r3d18_folder_small")
    monkeypatch.setitem(own_parts.own_recipes, "simsiam", shipped)


@pages
@pytest.mark.usefixtures("nothing_imported")
def test_options_of_the_front_door_are_known(page, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    for words in commands(page):
        if words[0] != "sce-video":
            continue
        assert words[1] in COMMANDS, f"{page.name}: {words}"
        # A pretraining has the settings of its method.
        method = words[words.index("--method") :][:2] if "--method" in words else []
        with pytest.raises(SystemExit):
            front_door([*words[1 : 3 if words[1] == "prepare" else 2], *method, "--help"])
        known = capsys.readouterr().out
        for flag in (word for word in words if word.startswith("--")):
            assert f"{flag} " in known or f"{flag}]" in known, f"{page.name}: {words} has {flag}"


class ParsedError(Exception):
    """The parser of a command has taken its words."""


@pages
@pytest.mark.usefixtures("nothing_imported")
def test_commands_of_the_front_door_are_parsed(page, capsys, monkeypatch):
    """By the command's own parser: values, choices, what is required."""
    parse_args = Parser.parse_args

    def parse(parser, words=None, namespace=None):
        parse_args(parser, words, namespace)
        raise ParsedError

    monkeypatch.setattr(sys, "argv", ["sce-video"])
    for kind in (argparse.ArgumentParser, Parser):
        monkeypatch.setattr(kind, "parse_args", parse)
    for words in commands(page):
        if words[0] == "sce-video" and "..." not in words and words[1:] != ["--help"]:
            try:
                front_door(words[1:])
            except ParsedError:
                continue
            except SystemExit:
                pytest.fail(f"{page.name}: {words}: {capsys.readouterr().err}")
            pytest.fail(f"{page.name}: {words} is not parsed")


@pages
def test_python_blocks_import_what_exists(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sce_video"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_the_first_screen_of_the_readme():
    """One sentence, the one line, the two commands of a clone, one picture."""
    screen = "\n".join((REPO / "README.md").read_text().splitlines()[:25])
    for part in (
        "sce-video pretrain VIDEOS --out RUN",
        "bash tools/quickstart.sh",
        "bash tools/run_tests.sh",
        "<img src=",
    ):
        assert part in screen, part


def test_commands_are_found():
    """The checks above see the commands, with variables and braces expanded."""
    for page, number, with_options in (("README.md", 10, 0), ("docs/pretrain.md", 8, 5)):
        found = list(commands(REPO / page))
        assert len(found) >= number, page
        assert sum("--cfg-options" in words for words in found) >= with_options, page


# -- code blocks that are files ----------------------------------------------------------------


FILES = page_files(*PAGES)
RECIPES = sorted(name for name, block in FILES.items() if "_base_" in block)
#: The module that the pages name by ``--import`` for a recipe.
IMPORTS = {
    "my_array_videos.py": "my_reader",
    "my_arrays.py": "my_dataset",
    "my_finetuning.py": "my_parts",
    "my_recipe.py": "my_parts",
    "my_test.py": "my_metrics",
}
SMALL = {
    "visualizer": None,
    "train_dataloader.num_workers": 0,
    "train_dataloader.persistent_workers": False,
    "train_dataloader.batch_size": 4,
    "train_dataloader.sampler.min_samples": 0,
    "train_cfg.max_epochs": 1,
    "custom_hooks.ScheduleHook.lr.warmup_epochs": 0,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of videos in two classes and of arrays."""
    root = tmp_path_factory.mktemp("data")
    make_videos(root / "videos", count=8)
    (root / "arrays").mkdir()
    for i in range(8):
        array = np.random.default_rng(i).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
        np.save(root / f"arrays/{i}.npy", array)
    return root


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files of the pages, in the current folder."""
    for name, block in FILES.items():
        (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)
    with registries_restored(tmp_path):
        yield tmp_path


def imported(recipe: str):
    """Import in a block what the pages import for a recipe."""
    module = IMPORTS.get(recipe)
    return own_imports([] if module is None else ["--import", module])


def small_options(recipe: Path, data: Path) -> list[str]:
    """Options that make a recipe over configs/sce/sce_r3d18_folder.py small."""
    cfg = load_config(recipe)
    options = dict(SMALL)
    if "base_channels" in cfg.model.backbone or cfg.model.backbone.type == "ResNet3dSlowPath":
        options["model.backbone.base_channels"] = 4
    for head in ("projector", "predictor"):
        options[f"model.{head}.hidden_channels"] = 16
    options["model.projector.out_channels"] = 8
    if cfg.model.type == "SCE":
        options["model.queue_size"] = 16
    loaders = {
        "train_dataloader": cfg.train_dataloader,
        "test_dataloader": cfg.test_dataloader,
        "test_cfg.gallery_dataloader": cfg.test_cfg.gallery_dataloader,
    }
    if "online_evaluation" in cfg.default_hooks:
        name = "default_hooks.online_evaluation.gallery"
        loaders[name] = cfg.default_hooks.online_evaluation.gallery
    for name, loader in loaders.items():
        options[f"{name}.num_workers"] = 0
        arrays = loader.dataset.type != "VideoDataset" or "extensions" in loader.dataset
        options[f"{name}.dataset.data_root"] = str(data / ("arrays" if arrays else "videos"))
        if "num_frames" in loader.dataset or loader.dataset.type == "FrameArrays":
            options[f"{name}.dataset.num_frames"] = 2
        for step in loader.dataset.get("pipeline", ()):
            here = f"{name}.dataset.pipeline.{step.type}"
            if "num_frames" in step:
                options |= {f"{here}.num_frames": 2, f"{here}.clip_duration": 0.3}
            if "size" in step:
                options[f"{here}.size"] = 32
    return [f"{key}={value}" for key, value in options.items()]


#: Recipes that test_own_parts.py trains, and the one that is only tested.
ELSEWHERE = ("my_finetuning.py", "my_recipe.py", "my_test.py")


@pytest.mark.parametrize("name", sorted({*RECIPES}.difference(ELSEWHERE)))
def test_recipes_of_the_pages_train(name, folder, data):
    options = small_options(folder / name, data)
    with imported(name):
        cfg = configs.training_config(name, work_dir=folder / "work", cfg_options=options)
        runner = launch.run_training(cfg)
    assert runner.iter == 2 and (folder / "work/epoch_1.pth").is_file()
    if "online_evaluation" in FILES[name]:
        lines = (folder / "work/online_evaluation.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [0, 1]


def test_the_metric_of_the_page_is_computed(folder, data):
    options = small_options(folder / "my_test.py", data)
    work = folder / "work"
    with imported("my_test.py"):
        cfg = configs.testing_config(
            "my_test.py", "random", work_dir=work, dump=work / "f.npz", cfg_options=options
        )
        launch.run_test(cfg)
    written = json.loads((folder / "work/results.json").read_text())
    (shown,) = (json.loads(block) for block in blocks(REPO / "docs/metrics.md", "json"))
    assert written["metrics"].keys() == shown["metrics"].keys()
    assert written["protocol"]["protocols"] == shown["protocol"]["protocols"]
    assert shown.keys() == written.keys() and shown["protocol"].keys() <= written["protocol"].keys()
    queries, gallery = (load_features(folder / f"work/{name}.npz")[0] for name in ("f", "f_bank"))
    unit, known = (
        (part.values / part.values.norm(dim=1, keepdim=True)).numpy() for part in (queries, gallery)
    )
    means = np.stack([known[gallery.labels.numpy() == label].sum(axis=0) for label in (0, 1)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found = (unit @ means.T).argmax(axis=1)
    expected = (found == queries.labels.numpy()).mean()
    assert written["metrics"]["ncm_top1"] == pytest.approx(expected)


def test_every_block_with_a_file_name_is_used():
    """A file that no recipe needs, and that is none, would not be tested."""
    text = "".join(page.read_text() for page in PAGES)
    for recipe, module in IMPORTS.items():
        named = rf'{recipe}\b[^`\n]* --import {module}\b|here / "{recipe}"'
        assert re.search(named, text), recipe
    used = {*IMPORTS.values(), *re.findall(r"^import (my_\w+)$", FILES["my_parts.py"], re.M)}
    assert {name for name in FILES if name not in RECIPES} == {f"{name}.py" for name in used}
    assert len(RECIPES) >= 5


def test_a_hook_of_ones_own_stands_next_to_those_of_the_recipe(folder):
    with imported("my_recipe.py"):
        recipe, cfg = (load_config(name) for name in ("sce_r3d18_folder_small", "my_recipe.py"))
    assert set(cfg.default_hooks) == {*recipe.default_hooks, "reminder"}
    assert [hook.type for hook in cfg.custom_hooks] == [hook.type for hook in recipe.custom_hooks]
