"""Examine all files of a list in several processes, resuming from a journal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from sce_video.data_tools.journal import Journal, JournalFormat, file_state
from sce_video.data_tools.process_pool import Outcome, process_items
from sce_video.data_tools.verification.examine import examine_file
from sce_video.datasets.readers.limits import MAX_PIXELS
from sce_video.datasets.video_list import VideoList, read_annotation_list, scan_folder

_FORMAT = JournalFormat(
    tool="verify",
    header={"journal": "sce_video verification", "version": 1},
    if_other_file="choose another name with --out",
)
_PROBED_ENTRIES = 20  # of a list, to find the folder that its paths are relative to


def read_videos(source: str, data_root: str | None) -> tuple[VideoList, str, list[int] | None]:
    """The videos of an annotation list or a folder, the root of their paths, and line numbers.

    Args:
        source: Annotation list, or a folder to search.
        data_root: Folder the paths of a list are relative to. None takes the folder of the list
            or the current one, whichever holds one of the first files.

    Returns:
        The list, the root, and (N,) line numbers from 1, which are None for a folder.

    Raises:
        ValueError: There are no videos, or none of the first files of the list exists.
    """
    if os.path.isdir(source):
        if data_root is not None:
            raise ValueError(f"{source} is a folder: --data-root goes with an annotation list")
        return scan_folder(source), source, None
    videos = read_annotation_list(source)
    first = [videos.path(i) for i in range(min(len(videos), _PROBED_ENTRIES))]
    roots = [os.path.dirname(source) or ".", "."] if data_root is None else [data_root]
    for root in roots:
        if any(os.path.exists(os.path.join(root, path)) for path in first):
            with open(source, encoding="utf-8-sig", errors="surrogateescape") as file:
                lines = [number for number, line in enumerate(file, 1) if line.strip()]
            return videos, root, lines
    raise ValueError(
        f"none of the first {len(first)} videos of {source!r} exist, for example "
        f"{os.path.join(roots[0], first[0])!r}: give their folder with --data-root"
    )


def open_journal(path: str | os.PathLike[str], restart: bool = False) -> Journal:
    """The journal of a verification; ``restart`` discards what it holds.

    Raises:
        ValueError: The file is not such a journal, cannot be written, or another run writes it.
    """
    path = Path(path)
    try:
        return Journal(path, _FORMAT, restart=restart)
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {error.strerror}; choose another path with --out"
        ) from error


def verify_videos(
    paths: Iterable[str],
    root: str,
    journal: Journal,
    *,
    workers: int = 1,
    timeout: float = 120.0,
    max_pixels: int = MAX_PIXELS,
    on_progress: Callable[[int, int, int], None] | None = None,
    examine: Callable[[tuple[str, float]], dict[str, Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Decode all files whose present state the journal does not know.

    A file is known if its size and modification time are those in the journal. Files that crashed
    a process are decoded again, files that timed out if ``timeout`` is longer now, and files that
    another ``max_pixels`` may admit or refuse.

    Args:
        paths: Files; a path given twice is decoded once.
        root: Folder they are relative to.
        journal: Results of earlier runs; the results of this run are appended.
        workers: Number of processes.
        timeout: Seconds a file may take.
        max_pixels: Height x width of the largest frames that are decoded.
        on_progress: Called with (files decoded, files to decode, files known or missing) at the
            start and after each file.
        examine: Function that a process calls with (path, seconds); for tests. None for
            :func:`examine_file`.

    Returns:
        Facts by path, as of :func:`examine_file`, with two more values of ``outcome``: ``missing``
        (not written to the journal) and ``crash``.
    """
    facts: dict[str, dict[str, Any]] = {}
    todo: list[tuple[str, dict[str, Any]]] = []
    for path in dict.fromkeys(paths):
        state = file_state(os.path.join(root, path))
        if state is None:
            facts[path] = {"outcome": "missing", "error": "there is no such file"}
            continue
        known = journal.entries.get(path)
        if known is not None and _is_current(known, state, timeout, max_pixels):
            facts[path] = known
        else:
            todo.append((path, state))
    report = on_progress or (lambda done, total, known: None)
    known_before = len(facts)
    report(0, len(todo), known_before)
    if not todo:
        return facts
    states = dict(todo)
    requests = ((path, (os.path.join(root, path), timeout)) for path, _ in todo)
    outcomes = process_items(
        examine or partial(examine_file, max_pixels=max_pixels),
        requests,
        workers=min(workers, len(todo)),
        timeout=timeout,
        preload=("sce_video.data_tools.verification",),
    )
    with closing(outcomes):
        for done, (path, outcome) in enumerate(outcomes, 1):
            given = {"timeout": timeout, "max_pixels": max_pixels}
            entry = {"path": path, **states[path], **given, **_facts_of(outcome)}
            journal.add(entry)
            facts[path] = entry
            report(done, len(todo), known_before)
    return facts


def _is_current(
    known: dict[str, Any], state: dict[str, Any], timeout: float, max_pixels: int
) -> bool:
    if any(known.get(name) != value for name, value in state.items()):
        return False
    if known.get("outcome") == "timeout":
        return timeout <= known.get("timeout", 0.0)
    if known.get("outcome") == "unreadable":
        return max_pixels <= known.get("max_pixels", 0)
    if known.get("outcome") != "decoded":
        return False
    return known.get("height", 0) * known.get("width", 0) <= max_pixels


def _facts_of(outcome: Outcome) -> dict[str, Any]:
    if outcome.fault is None:
        return outcome.value
    if outcome.fault == "timeout":
        return {"outcome": "timeout", "error": outcome.detail}
    words = {"crash": "the decoder crashed", "error": "examining it failed"}[outcome.fault]
    return {"outcome": "crash", "error": f"{words}: {outcome.detail}"}
