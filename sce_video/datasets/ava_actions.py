"""The actions of AVA, and the file that lists them (``ava_actions.json``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sce_video.utils.json_files import read_json

NUM_ACTIONS = 80  # ids are 1 to 80; scores of action ``id`` are in column ``id - 1``


@dataclass(frozen=True)
class Action:
    """An action class.

    Attributes:
        id: The official id, 1 to 80.
        name: The official name, for example ``bend/bow (at the waist)``.
        scored: Whether the official evaluation uses it (60 of the 80).
    """

    id: int
    name: str
    scored: bool = True


def format_actions(actions: Sequence[Action]) -> str:
    """The text of ``ava_actions.json``."""
    return json.dumps([asdict(action) for action in actions], indent=2, ensure_ascii=False) + "\n"


def read_actions(path: str | Path) -> tuple[Action, ...]:
    """Read a file written by :func:`format_actions`, in the order of the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: No list of actions, or an id that is repeated or not in 1 to 80; the message
            names file and entry.
    """
    try:
        entries = read_json(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"no list of actions {path}: run sce-video prepare ava") from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f'{path} should hold [{{"id": 1, "name": ..., "scored": true}}, ...]')
    actions: dict[int, Action] = {}
    for number, entry in enumerate(entries, 1):
        where = f"{path}, entry {number}"
        if not isinstance(entry, dict) or entry.keys() != {"id", "name", "scored"}:
            raise ValueError(f"{where}: {str(entry)[:80]} has not just id, name and scored")
        if type(entry["id"]) is not int or not 1 <= entry["id"] <= NUM_ACTIONS:
            raise ValueError(f"{where}: id {entry['id']!r} is not one of 1 to {NUM_ACTIONS}")
        if not isinstance(entry["name"], str) or not isinstance(entry["scored"], bool):
            raise ValueError(f"{where}: name must be text and scored true or false")
        if entry["id"] in actions:
            raise ValueError(f"{where}: id {entry['id']} is there twice")
        actions[entry["id"]] = Action(entry["id"], entry["name"], entry["scored"])
    return tuple(actions.values())
