"""``run.json``: written whole, read as data."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import pytest
from mmengine.config import Config

from sce_video.engine.run_json import (
    Choice,
    Plan,
    RunDescription,
    find_run_json,
    read_run_json,
    update_run_json,
    write_run_json,
)
from sce_video.reporting.result_files import collect_results

CHOICES = (
    Choice("recipe", "sce_r3d18_folder_small", "for --method sce"),
    Choice("width", 8, "two  spaces"),
    Choice("predictor", None, "600 steps"),
    Choice("teacher", "runs/a  b\udcff", "given"),
)
PLAN = Plan("sce_r3d18_folder_small", ("36 videos",), CHOICES, "about 1 minute", ("few videos",))
CONFIG = {"planned": True, "model": {"type": "SCE", "tau": 0.1}, "lr": float("inf")}
RUN = RunDescription("pretrain", {"videos": "V", "epochs": 3}, PLAN, CONFIG, {"versions": {}})


def test_what_is_written_is_read(tmp_path):
    """Also texts that look like columns, and a path that is not UTF-8."""
    write_run_json(tmp_path, RUN)
    assert read_run_json(tmp_path) == RUN and os.listdir(tmp_path) == ["run.json"]
    assert not collect_results([tmp_path]).skipped  # a report does not take it for results


def test_the_terminal_shows_columns():
    assert PLAN.lines() == [
        "36 videos",
        "  recipe     sce_r3d18_folder_small  for --method sce",
        "  width      8                       two  spaces",
        "  predictor  None                    600 steps",
        "  teacher    runs/a  b\udcff              given",
        "about 1 minute",
        "note: few videos",
    ]


def test_a_training_updates_state_and_config(tmp_path):
    update_run_json(tmp_path, "finished")  # the end of a training whose file has gone
    assert os.listdir(tmp_path) == []
    write_run_json(tmp_path, RUN)
    trained = {**CONFIG, "model": {"type": "SCE", "tau": 0.2}}
    update_run_json(tmp_path, "running", trained)
    update_run_json(tmp_path, "failed")
    assert read_run_json(tmp_path) == replace(RUN, state="failed", config=trained)


def test_a_training_of_a_config_file_has_no_plan(tmp_path):
    """Also where another training was planned in the folder before."""
    write_run_json(tmp_path, RUN)
    config = Config({"model": {"type": "MoCo"}}, cfg_text="text", filename="own.py")
    update_run_json(tmp_path, "running", config)
    update_run_json(tmp_path, "finished")
    run = read_run_json(tmp_path)
    assert (run.command, run.request, run.plan) == ("train", {"config": "own.py"}, None)
    assert run.config == {"model": {"type": "MoCo"}} and run.state == "finished"
    assert {"code", "versions"} <= run.environment.keys()


def test_a_run_is_described_by_its_folder_or_a_file_in_it(tmp_path):
    assert find_run_json(tmp_path) is None is find_run_json("s3://bucket/run/epoch_1.pth")
    write_run_json(tmp_path, RUN)
    assert find_run_json(tmp_path) == RUN == find_run_json(tmp_path / "epoch_1.pth")


def test_nothing_is_written_through_a_link(tmp_path):
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    write_run_json(tmp_path, RUN)
    target.write_text((tmp_path / "run.json").read_text())
    before = target.read_text()
    (run / "run.json").symlink_to(target)
    update_run_json(run, "running", CONFIG)
    assert target.read_text() == before and not (run / "run.json").is_symlink()
    (run / "run.json").write_text("[")
    update_run_json(run, "running", CONFIG)  # a damaged one does not stop a training
    assert (run / "run.json").read_text() == "["


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), [], "it must be an object"),
        (("kind",), "sweep", "kind and format must be"),
        (("format",), 2, "kind and format must be 'run' and 1, got 'run' and 2"),
        (("state",), "done", "state must be one of planned, running"),
        (("state",), ["planned"], "state must be one of planned, running"),
        (("config",), "model = 1", "config must be an object"),
        (("request",), None, "request must be an object"),
        (("environment",), [], "environment must be an object"),
        (("command",), 3, "command must be text"),
        (("extra",), 1, "it has the unknown field 'extra'"),
        (("plan",), "  recipe  x  y", "plan must be an object"),
        (("plan", "recipe"), {"a": 1}, "recipe must be text"),
        (("plan", "facts"), "a", "facts must be a list"),
        (("plan", "facts"), [1], "facts must be text"),
        (("plan", "remarks"), ["x"] * 501, "remarks must be a list of at most 500 entries"),
        (("plan", "length"), "x" * 100_001, "length must be text of at most 100000 characters"),
        (("plan", "choices"), [["a", 1, "b"]], r"choices\[0\] must be an object"),
        (("plan", "choices"), [{"setting": "a", "value": 1}], "lacks the field 'reason'"),
        (("plan", "choices", 1, "reason"), "\n" * 200_000, r"choices\[1\].reason must be text"),
        (("plan", "choices", 1, "value"), "x" * 200_000, r"choices\[1\].value has more than"),
        (("plan", "choices", 1, "value"), nested(60), "nested more than 50 levels deep"),
        (("plan", "choices", 1, "value"), nested(900), "nested more than 50 levels deep"),
    ],
)
def test_another_content_is_one_line(path, value, message, tmp_path):
    write_run_json(tmp_path, RUN)
    content = json.loads((tmp_path / "run.json").read_text())
    node = content
    for key in path[:-1]:
        node = node[key]
    if path:
        node[path[-1]] = value
    (tmp_path / "run.json").write_text(json.dumps(content if path else value))
    with pytest.raises(ValueError, match=message) as raised:
        read_run_json(tmp_path)
    text = str(raised.value)
    assert str(tmp_path / "run.json") in text and "\n" not in text and len(text) < 1000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"import os", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"9" * 5000, "is not JSON"),
        (b"[" * 2**20, "is not JSON"),
        (b" " * (2**22 + 1), "has more than 4194304 bytes"),
    ],
)
def test_a_damaged_file_is_one_line(content, message, tmp_path):
    (tmp_path / "run.json").write_bytes(content)
    begin = time.process_time()
    with pytest.raises(ValueError, match=message) as raised:
        read_run_json(tmp_path)
    assert "\n" not in str(raised.value) and time.process_time() - begin < 30


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_run_json(tmp_path)
