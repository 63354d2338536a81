"""Names of others on a terminal."""

import io
import sys

import pytest

from sce_video.utils.command import printable, printable_lines, printable_stdout, printable_utf8

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


def test_the_lines_of_a_text_stay():
    assert printable_lines("a\n\x1bb\n", UTF8) == "a\n\\x1bb\n"


def test_everything_printed_is_printable(capsys):
    with printable_stdout():
        print("a\tb\x1b[2J", "\x1b[31mred\x1b[0m", "name\r\udce9\n", sep="|")
        print("ü", end="")
        assert sys.stdout.encoding and not sys.stdout.isatty()
    print("\x1b", end="")
    assert capsys.readouterr().out == "a\tb\\x1b[2J|\x1b[31mred\x1b[0m|name\\r?\n\nü\x1b"
