"""Options are declared once. The command line and the Python call build equal objects."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from sce_video.options.command_line import parse, parser_of
from sce_video.options.declare import Group, OptionError, Options, Spec, option, python_call

SETTINGS = Group("settings")


@dataclass(frozen=True, kw_only=True)
class Training(Options):
    """Train on videos."""

    videos: str = option(Spec("folder of videos", positional=True, metavar="VIDEOS"))
    out: str = option(Spec("folder of the run", metavar="RUN"))
    start: str | None = option(Spec("network to start from", flag="--from"), None)
    hours: float | None = option(Spec("time budget in hours", above=0), None)
    frames: int = SETTINGS.option("frames per clip", 8, least=1, most=64)
    seeds: tuple[int, ...] = option(Spec("one run per seed"), ())
    weights: tuple[float, ...] = option(Spec("two weights", metavar=("A", "B")), (1.0, 0.5))
    keep: Literal["best", "last"] = option(Spec("checkpoint to keep"), "last")
    memory: bool | None = option(Spec("recompute activations"), None)
    plan: bool = option(Spec("stop before training"), False)
    resume: str | None = option(Spec("run to resume", alone="auto"), None)

    examples: ClassVar[tuple[str, ...]] = ("sce-video train-on V --out R",)

    def check(self) -> None:
        self.exclude("hours", "plan")
        if self.start is not None and self.frames > 32:
            raise OptionError("{start} cannot be combined with more than 32 {frames}")


def given(options):
    return options


LINES = {
    "V --out R": {},
    "V --out R --from S --hours 1.5": {"start": "S", "hours": 1.5},
    "V --out R --frames 4 --seeds 0 1": {"frames": 4, "seeds": (0, 1)},
    "V --out R --seeds 0 1 2": {"seeds": [0, 1, 2]},
    "V --out R --seeds 3": {"seeds": 3},
    "V --out R --weights 2 3": {"weights": (2.0, 3.0)},
    "V --out R --keep best --no-memory --plan": {"keep": "best", "memory": False, "plan": True},
    "V --out R --memory --resume": {"memory": True, "resume": "auto"},
    "V --out R --resume X": {"resume": Path("X")},
}


@pytest.mark.parametrize("line", LINES)
def test_command_line_and_python_build_equal_options(line):
    call = python_call(Training, given)
    by_words, by_keywords = parse(Training, line.split()), call("V", out="R", **LINES[line])
    assert by_words == by_keywords and by_words == call(by_words)
    assert hash(by_words) == hash(by_keywords)


WRONG = {
    "hours": (-1.0, "--hours must be above 0, got -1.0"),
    "frames": (65, "--frames must be at least 1 and at most 64, got 65"),
    "keep": ("first", "invalid choice: 'first'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named_on_both_sides(name, capsys):
    value, said = WRONG[name]
    with pytest.raises((ValueError, SystemExit)) as refused:
        parse(Training, ["V", "--out", "R", f"--{name}", str(value)])
    assert said in str(refused.value) + capsys.readouterr().err
    with pytest.raises(OptionError, match=f"^{name} must be .*{re.escape(str(value))}"):
        Training(videos="V", out="R", **{name: value})


@pytest.mark.parametrize("value", [float("nan"), "many", (1.0, 2.0), True])
def test_python_values_have_the_declared_type(value):
    with pytest.raises(OptionError, match="^hours "):
        Training(videos="V", out="R", hours=value)


def test_an_option_of_two_values_takes_two():
    with pytest.raises(OptionError, match=r"^weights must be 2 values \(A B\), got \(1.0,\)"):
        Training(videos="V", out="R", weights=(1.0,))


def test_combinations_name_flags_on_the_command_line_and_arguments_in_python():
    with pytest.raises(OptionError, match="^start cannot be combined with more than 32 frames$"):
        Training(videos="V", out="R", start="S", frames=33)
    with pytest.raises(ValueError, match="^--from cannot be combined with more than 32 --frames$"):
        parse(Training, "V --out R --from S --frames 33".split())


def test_excluded_options_cannot_be_combined():
    message = "^hours cannot be combined with plan. Remove one of them$"
    with pytest.raises(OptionError, match=message):
        Training(videos="V", out="R", hours=1, plan=True)


def test_a_shared_declaration_can_get_another_help_text():
    shared = Spec("number of clips", least=1)
    declared = SETTINGS.option(shared, 4, help="clips per video").metadata["spec"]
    assert declared == Spec("clips per video", least=1, group="settings")
    assert shared.help == "number of clips" and shared.group is None


def test_unknown_and_missing_arguments(capsys):
    call = python_call(Training, given)
    with pytest.raises(TypeError, match="frame"):
        call("V", out="R", frame=3)
    with pytest.raises(TypeError, match="out"):
        call("V")
    with pytest.raises(SystemExit):
        parse(Training, "V --out R --frame 3".split())
    assert "there is no option --frame. Did you mean --frames?" in capsys.readouterr().err


def test_help_states_defaults_groups_and_examples():
    text = " ".join(parser_of(Training).format_help().split())
    assert "frames per clip (default: 8)" in text and "settings: --frames" in text
    assert "two weights (default: 1 0.5)" in text and "sce-video train-on V --out R" in text
    assert text.startswith("usage:") and "Train on videos." in text


def test_declarations_need_neither_torch_nor_mmengine():
    code = (
        "import sys, sce_video.options.command_line as c; sys.exit(any(n in sys.modules for n in "
    )
    code += "('torch', 'mmengine', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
