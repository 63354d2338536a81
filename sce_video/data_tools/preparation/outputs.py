"""Write lists atomically, and replace other content only on demand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sce_video.utils.atomic_file import write_text


def write_outputs(
    folder: Path, contents: Mapping[str, str | None], *, force: bool = False
) -> dict[str, str]:
    """Write, replace or remove files of a folder so that they have the given contents.

    All files are compared before the first is written, and each is replaced atomically.

    Args:
        folder: Made if needed.
        contents: Text by file name; None for a file that should not exist.
        force: Replace or remove files whose content differs.

    Returns:
        By file name ``written``, ``unchanged``, ``replaced`` or ``removed``. Files that should not
        exist and do not are left out.

    Raises:
        ValueError: Files differ and ``force`` is False; the message names them.
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
