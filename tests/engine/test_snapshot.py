"""The text of a config is parsed as data; code in it is an error and is not executed."""

import math
import os

import pytest
from mmengine.config import Config

from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import foreign_classes, parse_config_text
from sce_video.registry import MODELS


def test_literals():
    text = """
a = dict(b=1, c=[1, -2.5, 'x', (1, )], d=dict(e=None, f=True), g={})
h = {'x-y': 1, 2: dict()}
i = dict({'no-identifier': [dict(type='A')]})
j = -1e-05
k = inf
m = -inf
n = nan
o = set()
p = {1, 'q'}
r = 'one ' 'two'
a2 = b'bytes'
"""
    parsed = parse_config_text(text, "x.pth")
    assert parsed["a"] == {
        "b": 1,
        "c": [1, -2.5, "x", (1,)],
        "d": {"e": None, "f": True},
        "g": {},
    }
    assert parsed["h"] == {"x-y": 1, 2: {}}
    assert parsed["i"] == {"no-identifier": [{"type": "A"}]}
    assert (parsed["j"], parsed["k"], parsed["m"]) == (-1e-5, math.inf, -math.inf)
    assert math.isnan(parsed["n"])
    assert (parsed["o"], parsed["p"], parsed["r"]) == (set(), {1, "q"}, "one two")


@pytest.mark.parametrize(
    "name",
    ["sce/sce_r3d18_8xb64-16x112-200e_k400", "sce/sce_r3d18_folder", "quickstart/sce_toy_actions"],
)
def test_text_written_by_mmengine_is_read_back(repo, name):
    cfg = load_config(repo / f"configs/{name}.py")
    assert parse_config_text(cfg.pretty_text, "x") == cfg.to_dict()


def test_unusual_values_are_read_back():
    values = {"s": 'it\'s "quoted"\n\tand long ' + "z" * 200, "e": (), "n": 10**20, "u": "é☃"}
    assert parse_config_text(Config(values).pretty_text, "x") == values


MARK = "{mark}"
MALICIOUS = [
    "import os\nos.mkdir('{mark}')",
    "from os import mkdir",
    "a = __import__('os').mkdir('{mark}')",
    "a = dict(b=[open('{mark}', 'w')])",
    "a = dict(b=eval('1'))",
    "a = (lambda: open('{mark}', 'w'))()",
    "a = [open('{mark}', 'w') for _ in (1, )]",
    "a = f\"{{open('{mark}', 'w')}}\"",
    "@open\ndef f(): pass",
    "def f(x=open('{mark}', 'w')): pass",
    "class A: b = open('{mark}', 'w')",
    "a: open('{mark}', 'w') = 1",
    "open('{mark}', 'w')",
    "a = 1; open('{mark}', 'w')",
    "if open('{mark}', 'w'): a = 1",
    "with open('{mark}', 'w') as a: pass",
    "a = {{open('{mark}', 'w'): 1}}",
    "a = dict(**open('{mark}', 'w'))",
    "a = {{**dict(b=1)}}",
    "a = dict([('b', 1)])",
    "a = dict(b=1, b=2)",
    "a = set([1])",
    "dict = open",
    "a = dict\nb = a(c=1)",
    "a = dict.fromkeys([1])",
    "a.b = 1",
    "a[0] = 1",
    "a = b = 1",
    "(a, b) = (1, 2)",
    "a += 1",
    "del a",
    "a = 9 ** 9 ** 9",
    "a = 'x' * 10",
    "a = not True",
    "a = -'x'",
    "a = -True",
    "a = [*(1, 2)]",
    "a = {{[]: 1}}",
    "a = {{dict()}}",
    "a = (b := 1)",
    "a = unknown",
    "a = ...if True else 1",
    "{{%if%}}",
    "_base_ = open('{mark}', 'w')",
]


@pytest.mark.parametrize("text", MALICIOUS)
def test_code_is_refused_and_not_executed(tmp_path, text):
    mark = tmp_path / "ran"
    if text == "dict = open":  # a name alone is not a literal, whatever it is bound to
        text += "\na = dict('{mark}')"
    with pytest.raises(ValueError, match=r"evil\.pth"):
        parse_config_text(text.format(mark=mark), "evil.pth")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "-" * 20000 + "1",
        "a = '\0'",
        "a = \ud800",
        "a = (",
    ],
    ids=["nested", "signs", "null", "surrogate", "unfinished"],
)
def test_text_that_cannot_be_parsed(text):
    with pytest.raises(ValueError, match=r"config text of evil\.pth"):
        parse_config_text(text, "evil.pth")


def test_the_line_is_named():
    with pytest.raises(ValueError, match=r"line 3: a call of open"):
        parse_config_text("a = 1\nb = dict(\n    c=open('x'))", "x.pth")


def test_wrong_type_and_too_long_text():
    with pytest.raises(ValueError, match="must be text, got dict"):
        parse_config_text({"a": 1}, "x.pth")
    with pytest.raises(ValueError, match="characters"):
        parse_config_text("a = 1\n" * 500_000, "x.pth")


def test_a_class_of_another_package_under_the_name_of_ours_is_named(monkeypatch):
    """As a module of ``custom_imports`` registers it with ``force=True``."""
    config = {
        "model": {"type": "SCE", "backbone": {"type": "sce_video.ResNet3dSlowPath"}},
        "optim_wrapper": {"type": "OptimWrapper", "optimizer": {"type": "SGD"}},
        "custom_hooks": [{"type": "ScheduleHook"}],
        "visualizer": {"type": "Elsewhere"},
    }
    assert foreign_classes(config) == []

    class SCE:
        __module__ = "mine.methods"

    monkeypatch.setitem(MODELS.module_dict, "SCE", SCE)
    assert foreign_classes(config) == ["SCE of mine.methods"]
    assert foreign_classes({"test_evaluator": [{"type": SCE}]}, ("test_evaluator",)) != []
