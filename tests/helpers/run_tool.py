"""Run a tool as a command does, in a process of its own that has imported the libraries already.

Starting Python and importing torch, mmengine and mmaction2 takes seconds, which a test of twenty
commands need not pay twenty times: the processes are forked from a server that only imports.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from helpers.training import REPO

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "mmengine.runner",
        "mmaction.registry",
        "sce_video.datasets",
        "sce_video.engine",
        "sce_video.evaluation",
        "sce_video.models",
    ]
)


def load(name: str) -> ModuleType:
    """The module of a tool, e.g. "convert/from_torchvision", to call its ``main`` in process."""
    path = REPO / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_tool(
    tool: str, *arguments: object, cwd: Path = REPO, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Run ``python tools/TOOL ARGUMENTS`` and wait for it, 300 s at most.

    Args:
        tool: Path below ``tools``, with ``.py``.
        arguments: Of the command; turned into text.
        cwd: Directory to run in.
        env: Environment variables that are set or changed.
    """
    words = [str(REPO / "tools" / tool), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _CONTEXT.Process(target=_main, args=(words, str(cwd), env or {}, out, err))
        process.start()
        process.join(300)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"{words} ran for 300 s:\n{out.read_text()}{err.read_text()}")
        return subprocess.CompletedProcess(
            words, process.exitcode, out.read_text(), err.read_text()
        )


def _main(words: list[str], cwd: str, env: dict[str, str], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    os.chdir(cwd)
    os.environ.update(env)
    sys.argv, sys.path[0] = words, os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")
