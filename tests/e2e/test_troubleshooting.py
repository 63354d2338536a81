"""Every message that docs/troubleshooting.md quotes is in the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs/troubleshooting.md"
#: Who else writes messages, in brackets after them.
OTHERS = ("Linux", "NCCL", "mmcv", "torch")


def entries() -> list[tuple[str, ...]]:
    """Message and answer of each row, and of each heading that quotes a message."""
    text = PAGE.read_text()
    rows = [
        tuple(x.strip() for x in line.split("|"))
        for line in re.findall(r"^\| (`.*) \|$", text, re.M)
    ]
    sections = re.findall(r"^### (.*)\n((?:(?!#).*\n)+)", text, re.M)
    return rows + sections


def messages() -> list[str]:
    return [message for message, _ in entries() if message.startswith("`")]


def own_messages() -> list[str]:
    """The quoted messages of this package: those without the name of another one."""
    return [line[1:-1] for line in messages() if re.fullmatch(r"`[^`]+`", line)]


@cache
def texts_of_the_code() -> tuple[str, ...]:
    """All texts of the package but docstrings; what an f-string fills in is a line break."""
    found = []
    for path in sorted((REPO / "sce_video").rglob("*.py")):
        tree = ast.parse(path.read_text())
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "\n" for v in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and id(node) not in alone:
                found.append(str(node.value))
    return tuple(found)


def is_in_the_code(message: str) -> bool:
    """Whether one text of the code has the words of a message in order, ``...`` for the rest."""
    words = [part.strip() for part in message.split("...") if part.strip()]

    def fits(text: str) -> bool:
        at = 0
        for word in words:
            at = text.find(word, at)
            if at < 0:
                return False
            at += len(word)
        return True

    return any(map(fits, texts_of_the_code()))


@pytest.mark.parametrize("message", own_messages())
def test_quoted_messages_are_in_the_code(message):
    assert is_in_the_code(message), f"no message of sce_video reads {message!r}"


def test_a_message_that_nobody_writes_is_found():
    assert not is_in_the_code("the queue holds ... keys and that is fine")
    assert len(own_messages()) > 50


def test_messages_of_others_name_their_source():
    """A quoted message with more words than its own names its source."""
    for line in messages():
        if not re.fullmatch(r"`[^`]+`", line):
            assert re.fullmatch(rf"`[^`]+` \(({'|'.join(OTHERS)})\)", line), line


def test_every_entry_has_a_cause_or_a_cure():
    assert len(entries()) > 80
    for message, answer in entries():
        assert len(answer) > 15, message
