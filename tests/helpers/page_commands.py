"""Run the commands of a page of the documentation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.run_tool import free_port, load

from sce_video.commands.main import main as front_door

#: Programs of the pages. Each prints its words, NUL-separated, instead of running.
PROGRAMS = "python bash pip source torchrun ffmpeg mkdir tar unzip rm sce-video"
PROGRAMS += " tensorboard embedding-atlas"
_PRINTER = "() { printf '%s\\0' \"$FUNCNAME\" \"$@\"; printf '\\n'; }"


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code blocks of a language, with their indentation."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def words_of_commands(block: str) -> list[list[str]]:
    """The words of every command of a block, after bash has expanded loops and variables.

    Raises:
        AssertionError: bash refuses the block, or a program is not known here.
    """
    script = "".join(f"{name}{_PRINTER}\n" for name in PROGRAMS.split())
    done = subprocess.run(
        [str(shutil.which("bash")), "-uc", script + block],
        env={"PATH": "/nowhere"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"{block}{done.stderr}"
    return [line.split("\0")[:-1] for line in done.stdout.splitlines()]


def run_in_process(words: list[str], folder: Path, launched: set[str]) -> None:
    """Run a command: a launcher once as it is, then the tool that it starts, in this process.

    Args:
        words: ``sce-video ...``, ``python tools/TOOL.py ...`` or ``bash tools/LAUNCHER.sh CONFIG 1
            ...``.
        folder: The current directory; has ``tools``.
        launched: Launchers that have run; changed here.

    Raises:
        AssertionError: the command fails; what it printed is the test's output.
    """
    if words[0] == "bash" and words[1] not in launched:
        launched.add(words[1])
        done = _launch(words, folder)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return
    if words[0] == "sce-video":
        assert front_door(words[1:]) == 0, " ".join(words)
        return
    tool, arguments = _without_launcher(words)
    assert load(tool).main(arguments) == 0, " ".join(words)


def _without_launcher(words: list[str]) -> tuple[str, list[str]]:
    """The tool, without ``.py``, and its arguments."""
    tool = words[1].removeprefix("tools/")
    if words[0] == "python":
        return tool.removesuffix(".py"), words[2:]
    arguments = words[2:]
    arguments.remove("1")
    return tool.removeprefix("dist_").removesuffix(".sh"), arguments


def _launch(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PORT": str(free_port())}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
