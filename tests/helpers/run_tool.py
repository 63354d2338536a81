"""Run a tool as a command does, in a process of its own that has imported the libraries already.

Starting Python and importing what a training needs takes 7 s of a core, which a test of twenty
commands need not pay twenty times: the processes are forked from a server that only imports. So are
the ranks of a test with several processes.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from helpers.training import REPO
from torch.multiprocessing import start_processes

from sce_video.commands import prepare as prepare_command
from sce_video.commands.main import COMMANDS
from sce_video.commands.main import main as sce_video_main
from sce_video.runs import page as run_page

_CONTEXT = multiprocessing.get_context("forkserver")
#: The last ones are what a training imports at its first lookup, step and picture.
_MODULES = [
    "torch",
    "mmengine.runner",
    "mmaction.registry",
    "sce_video.inference.classifier",
    "sce_video.datasets",
    "sce_video.engine",
    "sce_video.evaluation",
    "sce_video.models",
    "mmaction.datasets",
    "mmaction.models",
    "mmaction.visualization",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "matplotlib.pyplot",
]


def start_server() -> None:
    """Start the server of this process, which process pools of the package use as well.

    There is one for each process, and the first use decides what it imports: a pool's would import
    what its workers need only.
    """
    _CONTEXT.set_forkserver_preload(_MODULES)
    forkserver.ensure_running()


def load(name: str) -> ModuleType | SimpleNamespace:
    """The module of a tool, e.g. "convert/to_layout", or of a command, to call its ``main``."""
    path = REPO / "tools" / f"{name}.py"
    if not path.exists():
        module, _, function = COMMANDS[name][0].partition(".")
        found = importlib.import_module(f"sce_video.commands.{module}")
        return found if function == "main" else SimpleNamespace(main=getattr(found, function))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepare(name: str, *words: object) -> int:
    """The status of ``sce-video prepare NAME ...`` in this process."""
    return prepare_command.main([name, *map(str, words)])


def prepared(capsys: pytest.CaptureFixture, name: str, *words: object) -> tuple[int, str, str]:
    """Status, stdout and stderr of :func:`prepare` with one worker."""
    capsys.readouterr()
    status = prepare(name, "--workers", "1", *words)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


def cells(out: str, title: str) -> list[str]:
    """The cells of a line of the table of counts."""
    (line,) = (line for line in out.splitlines() if line.startswith(f"{title}  "))
    return [cell.strip() for cell in line[len(title) :].split("  ") if cell.strip()]


def run_tool(
    tool: str | Path, *arguments: object, cwd: Path = REPO, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Run ``python tools/TOOL ARGUMENTS`` or ``sce-video TOOL ARGUMENTS``, 300 s at most.

    A training writes no page of its run, which takes longer than the trainings of the tests; the
    tests of pages do not come here.

    Args:
        tool: Path below ``tools`` with ``.py``, or an absolute path; or a command.
        arguments: Of the command; turned into text.
        cwd: Directory to run in.
        env: Environment variables that are set or changed.
    """
    is_command = Path(tool).suffix == ""
    words = ["sce-video", str(tool)] if is_command else [str(REPO / "tools" / tool)]
    words += map(str, arguments)
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        start_server()
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


def run_tool_ranks(
    tool: str | Path,
    *arguments: object,
    count: int = 2,
    cwd: Path = REPO,
    env: dict[str, str] | None = None,
) -> list[subprocess.CompletedProcess]:
    """:func:`run_tool` in ``count`` processes at once, as torchrun starts them on one machine."""
    env = (env or {}) | dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    env |= dict(WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
    ranks = [{**env, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: run_tool(tool, *arguments, cwd=cwd, env=rank), ranks))


def run_ranks(function: Callable, *arguments: object, count: int = 2) -> None:
    """Call ``function(rank, *arguments)`` in ``count`` processes with the environment of this one.

    Raises:
        torch.multiprocessing.ProcessException: one of them fails; its traceback is the message.
    """
    start_server()
    given = (dict(os.environ), function, arguments)
    start_processes(_rank, args=given, nprocs=count, start_method="forkserver")


def run_gloo(function: Callable[[int, int], object], folder: Path, count: int = 2) -> list:
    """What ``function(rank, world)`` returns in ``count`` processes of a gloo group."""
    run_ranks(_in_group, count, free_port(), function, folder, count=count)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _in_group(rank: int, world: int, port: int, function: Callable, folder: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    torch.save(function(rank, world), folder / f"{rank}.pt")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads occasionally abort a process that ends in the usual way


def _rank(rank: int, environment: dict[str, str], function: Callable, arguments: tuple) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(rank, *arguments)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _main(words: list[str], cwd: str, env: dict[str, str], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    os.chdir(cwd)
    os.environ.update(env)
    sys.argv = words
    run_page._write_or_warn = lambda *_: None
    if words[0] == "sce-video":
        sys.exit(sce_video_main())
    sys.path[0] = os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")
