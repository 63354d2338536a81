"""Writing lists: whole or not at all, and never over other content unless told to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sce_video.utils.atomic_file import write_text


def write_outputs(
    folder: Path, contents: Mapping[str, str | None], *, force: bool = False
) -> dict[str, str]:
    """Bring the files of a folder to the given contents.

    Nothing is written before all files have been compared, and each is replaced in one step.

    Args:
        folder: Made if need be.
        contents: Text by file name; None for a file that should not be there.
        force: Replace or remove files whose content differs.

    Returns:
        What was done, by file name: ``written``, ``unchanged``, ``replaced`` or ``removed``. A
        file that should not be there and is not, is left out.

    Raises:
        ValueError: Files differ and ``force`` is not given; names them.
    """
    actions: dict[str, str] = {}
    for name, text in contents.items():
        path = folder / name
        old = _read(path)
        if old is None:
            if text is not None:
                actions[name] = "written"
        elif text is None:
            actions[name] = "removed"
        else:
            actions[name] = "unchanged" if old == _encode(text) else "replaced"
    differing = [name for name, action in actions.items() if action in ("replaced", "removed")]
    if differing and not force:
        listed = ", ".join(str(folder / name) for name in differing)
        raise ValueError(
            f"existing files differ from the new result: {listed}. Nothing was written; --force "
            "replaces them, --out DIR writes elsewhere"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, action in actions.items():
        if action == "removed":
            (folder / name).unlink()
        elif action != "unchanged":
            write_text(folder / name, contents[name] or "")
    return actions


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogateescape")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
