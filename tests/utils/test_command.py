"""Tools: one prefix and one exit status, and which errors keep their traceback."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from mmengine.registry import Registry
from torch.utils.data import DataLoader, Dataset

from sce_video.utils.command import ERROR, INTERRUPTED, command, explain
from sce_video.utils.errors import MissingPackageError, UserError


def failing(error: BaseException, **options):
    @command(**options)
    def main(argv=None):
        raise error

    return main


@pytest.mark.parametrize(
    "error",
    [
        ValueError("tau is 0"),
        FileNotFoundError("no file a"),
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.EIO, "Input/output error", "a.mp4"),
        UserError("three of four files"),
        MissingPackageError("pip install ray"),
    ],
)
def test_an_error_of_a_user_is_one_line(error, capsys):
    assert failing(error)([]) == ERROR == 2
    assert capsys.readouterr().err == f"test_command.py: error: {error}\n"


@pytest.mark.parametrize("error", [KeyError("a"), RuntimeError("a"), ImportError("a"), OSError(5)])
def test_other_errors_are_raised(error):
    with pytest.raises(type(error)):
        failing(error)([])


def test_an_interrupt_says_how_to_continue(capsys):
    assert failing(KeyboardInterrupt(), interrupted="stopped; run it again")([]) == INTERRUPTED
    assert capsys.readouterr().err == "\ntest_command.py: stopped; run it again\n"


def test_a_hangup_that_nohup_ignores_ends_nothing():
    @command
    def hung_up(argv):
        os.kill(os.getpid(), signal.SIGHUP)
        return 0

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert hung_up([]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_mmengine_refuses_is_explained():
    with pytest.raises(KeyError) as raised:
        Registry("thing").build(dict(type="Nothing"))
    assert "Nothing is not in the" in explain(raised.value)
    with pytest.raises(AssertionError) as own:
        raise AssertionError("of our own")
    assert explain(own.value) is None


class _Refusing(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise ValueError("a crop of 9 does not fit")


def test_an_error_in_a_loader_worker_is_one_line():
    with pytest.raises(ValueError) as raised:
        list(DataLoader(_Refusing(), num_workers=1))
    assert "Traceback" in str(raised.value)
    assert explain(raised.value) == "a crop of 9 does not fit"


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    script = tmp_path / "tool.py"
    script.write_text(
        "import sys\n"
        "from sce_video.utils.command import command\n"
        "@command\n"
        "def main(argv=None):\n"
        "    for number in range(100000):\n"
        "        print(number, flush=True)\n"
        "    return 0\n"
        "sys.exit(main())\n"
    )
    tool = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert tool.stdout.readline() == "0\n"
    tool.stdout.close()
    assert tool.wait(60) == 141
    assert tool.stderr.read() == ""
