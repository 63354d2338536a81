"""Command-line tools: errors, exit statuses, printable names and progress."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import subprocess
import sys

import pytest
from mmengine.registry import Registry
from torch.utils.data import DataLoader, Dataset

from sce_video.utils.command import (
    ERROR,
    INTERRUPTED,
    Progress,
    command,
    explain,
    printable,
    printable_lines,
    printable_stdout,
    printable_utf8,
    rare_collections,
)
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


def test_a_missing_file_is_named_without_the_number_of_the_error(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        open(tmp_path / "none.txt")
    assert explain(raised.value) == f"there is no file or folder {tmp_path / 'none.txt'}"
    assert explain(FileNotFoundError("there is no run at x")) == "there is no run at x"


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


# -- untrusted names on a terminal

ASCII = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
UTF8 = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a/ü 4.mp4", "a/ü 4.mp4"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\x9b31m", r"\x9b31m"),  # the one-character form of ESC [
        ("left\u202eright", r"left\u202eright"),
        ("latin\udce9.mp4", "latin?.mp4"),
        ("lone \ud800", r"lone \ud800"),
    ],
)
def test_control_characters_are_written_as_in_python(text, shown):
    assert printable(text, UTF8) == shown
    assert printable_utf8(text) == shown.replace("latin?", "latin\ufffd")
    assert printable(text, ASCII) == shown.replace("ü", "?")
    assert printable_lines(f"{text}x\ny", UTF8).splitlines()[-1] == "y"


def test_everything_printed_is_printable(capsys):
    with printable_stdout():
        print("a\tb\x1b[2J", "\x1b[31mred\x1b[0m", "name\r\udce9\n", sep="|")
        print("ü", end="")
        assert sys.stdout.encoding and not sys.stdout.isatty()
    print("\x1b", end="")
    assert capsys.readouterr().out == "a\tb\\x1b[2J|\x1b[31mred\x1b[0m|name\\r?\n\nü\x1b"


# -- progress, with a clock set by the test


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _run(stream, seconds_each, total, every=30.0):
    now = [0.0]
    progress = Progress(total, "checking", stream, clock=lambda: now[0], every=every)
    for _ in range(total):
        now[0] += seconds_each
        progress.advance()
    progress.finish()
    return stream.getvalue()


def test_a_log_file_gets_a_line_now_and_then():
    text = _run(io.StringIO(), 0.5, 200)  # 100 s: after 30, 60 and 90 s, and at the end
    assert text.splitlines() == [
        "checking 60/200 (30%), 2.0 files/s, 0:01:10 left",
        "checking 120/200 (60%), 2.0 files/s, 0:00:40 left",
        "checking 180/200 (90%), 2.0 files/s, 0:00:10 left",
        "checking 200/200 (100%), 2.0 files/s, took 0:01:40",
    ]


def test_the_bar_of_a_terminal_shows_rate_time_left_and_failures(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream, now = _Terminal(), [0.0]
    progress = Progress(10, "embedding [a]", stream, clock=lambda: now[0], unit="videos", begin=4)
    now[0] = 2.0
    progress.advance(failed=True)
    progress.finish()
    shown = "embedding [a] 5/10 (50%), 0.5 videos/s, 1 unreadable, 0:00:10 left"
    assert shown in stream.getvalue()


def test_collections_are_as_before_after_a_short_command():
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="end"), rare_collections():
        assert gc.get_threshold()[0] > before[0]
        raise ValueError("end")
    assert gc.get_threshold() == before
