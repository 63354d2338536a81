"""A run folder of somebody else is resumed as data: ``run.json`` names nothing that is used."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

from sce_video.commands.main import main
from sce_video.engine.config.check import top_level_keys
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import plain
from sce_video.engine.recipes import methods
from sce_video.engine.run_json import Plan, RunDescription, read_run_json, write_run_json
from sce_video.registry import HOOKS
from sce_video.runs.folder import read_run
from sce_video.runs.planned_config import planned_config

RECIPE = methods()["sce"]


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A module that notices its import, a config that notices its run, and a silent server."""
    module, file = tmp_path / "canary_in_run_json.py", tmp_path / "sang"
    module.write_text(f"open({str(file)!r}, 'a').write('run')\nEvil = dict\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    url = f"http://127.0.0.1:{server.getsockname()[1]}/x.pth"
    monkeypatch.setenv("AWS_ENDPOINT_URL", url.removesuffix("/x.pth"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.py").write_text(f"open({str(file)!r}, 'a').write('config')\n")
    (run / "metrics.jsonl").write_text('{"kind": "train", "iter": 1, "loss": 1.0}\n')
    yield run, url
    assert not file.exists() and "canary_in_run_json" not in sys.modules
    with pytest.raises(BlockingIOError):
        server.accept()
    server.close()


def described(recipe, config):
    return RunDescription("pretrain", {}, Plan(recipe, (), (), ""), config, {})


def config_of(recipe):
    """The config of a recipe as a plan has it, without the variables of its files."""
    config = plain(load_config(recipe)).items()
    return {name: value for name, value in config if name in top_level_keys()}


def changed(path, value):
    """The config of the recipe with another value."""
    config = config_of(RECIPE)
    node = config
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return config


EVIL = {"type": "canary_in_run_json.Evil"}
CHANGES = {
    "method": (("model", "type"), "canary_in_run_json.Evil"),
    "network": (("model", "backbone"), EVIL),
    "weights": (("model", "backbone", "init_cfg"), {"type": "Pretrained", "checkpoint": "URL"}),
    "data": (("train_dataloader", "dataset", "type"), "canary_in_run_json.Evil"),
    "store": (("train_dataloader", "dataset", "data_root"), "s3://evil/v.lance"),
    "hook": (("custom_hooks",), [EVIL]),
    "imports": (("custom_imports",), {"imports": ["canary_in_run_json"]}),
    "scope": (("default_scope",), "canary_in_run_json"),
    "runner": (("runner_type",), "canary_in_run_json.Evil"),
    "start": (("pretrained",), "URL"),
    "model": (("pretrained",), "hf:evil/model"),
    "teacher": (("teacher_checkpoint",), "URL"),
    "log": (("visualizer",), {"type": "Visualizer", "vis_backends": [EVIL]}),
    "tracker": (("visualizer",), {"type": "Visualizer", "vis_backends": [{"type": "Wandb"}]}),
    "reader": (("train_dataloader", "dataset", "pipeline", 0, "backend"), "canary_in_run_json"),
    "writer": (("test_evaluator",), [{"type": "AVAMeanAP", "csv": "evil.csv"}]),
    "folder": (("custom_hooks",), [{"type": "OnlineEvaluationHook", "gallery": {}, "out": "/x"}]),
    "mirror": (("default_hooks", "mirror"), {"type": "MirrorHook", "url": "s3://evil/x"}),
    "word": (
        ("custom_hooks",),
        [{"type": "OnlineEvaluationHook", "gallery": {}, "keep": "canary_in_run_json.Evil"}],
    ),
}
#: What planning may add to a recipe: classes of the package, and words that they compare.
ADDED = {
    "budget": (("default_hooks", "budget"), {"type": "BudgetHook", "hours": 1.0}),
    "precision": (
        ("optim_wrapper",),
        {
            "type": "MixedPrecisionOptimWrapper",
            "dtype": "bfloat16",
            "constructor": "NoNormDecayConstructor",
            "paramwise_cfg": {"no_decay": ["bias", "q_bias"], "layer_decay": 0.75},
        },
    ),
    "best": (
        ("custom_hooks",),
        [
            {
                "type": "OnlineEvaluationHook",
                "gallery": {"dataset": {"type": "VideoDataset", "subset": {"part": "held_out"}}},
                "metrics": [{"type": "RankMe"}],
                "keep": "rankme",
            },
            {"type": "ScheduleHook", "weight_decay": {"name": "cosine", "start": 0.1, "end": 0.2}},
        ],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_in_it_is_used(name, canary, capsys):
    run, url = canary
    path, value = CHANGES[name]
    config = changed(path, url if value == "URL" else value)
    if name == "weights":
        config["model"]["backbone"]["init_cfg"]["checkpoint"] = url
    write_run_json(run, described(RECIPE, config))
    with pytest.raises(
        ValueError, match=r"run\.json names|cannot be checked|is not|evil|no backbone"
    ):
        planned_config(run)
    assert main(["pretrain", "--out", str(run), "--resume"]) == 2
    assert main(["finetune", "--out", str(run), "--resume"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 2
    assert read_run(run).recipe == RECIPE  # for the page and the comparison


@pytest.mark.parametrize("name", ADDED)
def test_what_planning_adds_is_taken(name, tmp_path):
    """The classes say so, and no list of texts has to be kept."""
    path, value = ADDED[name]
    write_run_json(tmp_path, described(RECIPE, changed(path, value)))
    config = plain(planned_config(tmp_path))
    for key in path:
        config = config[key]
    assert config == value


def test_an_imported_class_of_the_user_is_taken(tmp_path):
    class OwnHook:
        def __init__(self, interval: int = 1, name: str = "") -> None:
            pass

    for hook in ({"type": "OwnHook", "interval": 3}, {"type": "OwnHook", "name": "strange"}):
        write_run_json(tmp_path, described(RECIPE, changed(("custom_hooks",), [hook])))
        with pytest.raises(ValueError, match=r"run\.json names 'OwnHook'"):
            planned_config(tmp_path)
        HOOKS.register_module(module=OwnHook)
        try:
            if "name" in hook:
                with pytest.raises(ValueError, match=r"run\.json names 'strange'"):
                    planned_config(tmp_path)
            else:
                assert planned_config(tmp_path).custom_hooks[0].interval == 3
        finally:
            HOOKS.module_dict.pop("OwnHook")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("filename",), 3, "config has the unknown key 'filename'"),
        (("model",), 3, "config.model must be an object, got 3"),
        (("default_hooks",), None, "config.default_hooks must be an object, got None"),
        (("optim_wrapper",), [], r"config.optim_wrapper must be an object, got \[\]"),
        (("custom_hooks",), {}, "config.custom_hooks must be a list, got {}"),
        (("custom_hooks", 0), None, "config.custom_hooks must be a list of objects, got None"),
    ],
)
def test_another_shape_is_one_line(path, value, message, canary, capsys):
    run, _ = canary
    write_run_json(run, described(RECIPE, changed(path, value)))
    with pytest.raises(ValueError, match=message):
        planned_config(run)
    assert main(["pretrain", "--out", str(run), "--resume"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("recipe", ["canary_in_run_json", "../run/config.py", "demo", ""])
def test_another_recipe_is_not_read(recipe, canary):
    run, _ = canary
    write_run_json(run, described(recipe, config_of(RECIPE)))
    with pytest.raises(ValueError, match="which is not a recipe of pretrain or finetune"):
        planned_config(run)
    assert read_run(run).changes == []


@pytest.mark.parametrize("method", methods())
def test_the_config_is_the_planned_one(method, tmp_path):
    """Of every method: values of JSON instead of Python change nothing."""
    write_run_json(tmp_path, described(methods()[method], config_of(methods()[method])))
    config = planned_config(tmp_path)
    assert isinstance(config, Config) and Path(config.filename) == tmp_path / "config.py"
    given = {"load_from": None, "resume": False}
    assert plain(config) == {**read_run_json(tmp_path).config, **given}
    assert plain(load_config(config)) == plain(config)  # as --resume checks it
