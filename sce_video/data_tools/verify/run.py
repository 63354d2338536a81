"""Examine all files of a list in several processes; an interrupted run can be resumed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sce_video.data_tools.verify.problems import KINDS, Problem, examine_file
from sce_video.datasets.readers.limits import MAX_PIXELS
from sce_video.datasets.video_list import VideoList, read_annotation_list, scan_folder
from sce_video.jobs import (
    BatchJob,
    BusyStoreError,
    Item,
    Record,
    RecordStore,
    StoreError,
    Workers,
    file_state,
    is_current,
    run_job,
)
from sce_video.utils.files import write_text
from sce_video.utils.printable import printable_utf8

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


def open_records(path: str | os.PathLike[str], restart: bool = False) -> RecordStore:
    """The records of a verification; ``restart`` discards what the file holds.

    Raises:
        StoreError: The file holds something else, or another run writes it.
        StorageError: It cannot be written.
    """
    try:
        return RecordStore(Path(path), VerifyJob.name, restart=restart)
    except BusyStoreError:
        raise
    except StoreError as error:
        raise StoreError(f"{error}; choose another name with --out") from error


class VerifyJob(BatchJob):
    """Decodes one file completely.

    Its limits are no settings of the records: what was found tells whether other limits would find
    something else.

    Args:
        root: Folder that the keys of the items are relative to.
        timeout: Seconds a file may take.
        max_pixels: Height x width of the largest frames that are decoded.
        examine: Called with (path, seconds); None for :func:`examine_file`. For tests.
    """

    name = "verify"

    def __init__(
        self,
        root: str,
        timeout: float,
        max_pixels: int = MAX_PIXELS,
        examine: Callable[[tuple[str, float]], dict[str, Any]] | None = None,
    ) -> None:
        self.root = os.path.abspath(root)  # other machines have other current folders
        self.timeout = timeout
        self.max_pixels = max_pixels
        self._examine = examine

    def process(self, item: Item) -> dict[str, Any]:
        """Facts about a file."""
        request = os.path.join(self.root, item.key), self.timeout
        if self._examine is not None:
            facts = self._examine(request)
        else:
            facts = examine_file(request, self.max_pixels)
        return {**facts, "max_pixels": self.max_pixels}

    def holds(self, item: Item, record: Record) -> bool:
        """Files that crashed a process are decoded again, files that timed out if the limit is
        longer now, and files that another ``max_pixels`` may admit or refuse."""
        facts = facts_of(record)
        if facts["outcome"] == "timeout":
            return self.timeout <= (record.time_limit or 0.0)
        if facts["outcome"] == "unreadable":
            return self.max_pixels <= facts.get("max_pixels", 0)
        if facts["outcome"] != "decoded":
            return False
        return facts.get("height", 0) * facts.get("width", 0) <= self.max_pixels


class RecordedFacts(Mapping[str, dict[str, Any]]):
    """Facts by path, read from the records when they are asked for.

    Millions of files so take the memory of their names.

    Args:
        paths: The files.
        missing: Those that do not exist.
        store: Records of the others; open as long as this is read.
    """

    def __init__(self, paths: Collection[str], missing: set[str], store: RecordStore) -> None:
        self._paths = paths
        self._missing = missing
        self._store = store

    def __getitem__(self, path: str) -> dict[str, Any]:
        if path in self._missing:
            return {"outcome": "missing", "error": "there is no such file"}
        record = self._store.get(path)
        if record is None:
            raise KeyError(path)
        return facts_of(record)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def verify_videos(
    paths: Iterable[str],
    job: VerifyJob,
    store: RecordStore,
    workers: Workers,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> RecordedFacts:
    """Decode all files whose present state has no record.

    Args:
        paths: Files; a path given twice is decoded once.
        job: What is done with each, relative to its ``root``.
        store: Results of earlier runs; the results of this run are added.
        workers: Where it runs.
        on_progress: Called with (files decoded, files to decode, files known or missing) at the
            start and after each file.

    Returns:
        Facts by path, as of :func:`examine_file`, with two more values of ``outcome``: ``missing``
        (not recorded) and ``crash``.
    """
    unique = dict.fromkeys(paths)
    missing: set[str] = set()

    def existing() -> Iterator[Item]:
        for path in unique:
            item = Item(path, file_state(os.path.join(job.root, path)))
            if item.source is None:
                missing.add(path)
            else:
                yield item

    due = sum(not is_current(job, item, store) for item in existing())
    report = on_progress or (lambda done, total, known: None)
    report(0, due, len(unique) - due)
    done = 0

    def add(item: Item, record: Record | None) -> None:
        nonlocal done
        done += 1
        report(done, due, len(unique) - due)

    if due:
        run_job(job, existing(), store, workers.at_most(due), add)
    return RecordedFacts(unique, missing, store)


def facts_of(record: Record) -> dict[str, Any]:
    """The facts of a record, whether or not its file could be examined."""
    if record.done:
        return record.facts
    if record.kind == "timeout":
        return {"outcome": "timeout", "error": record.reason}
    words = "the decoder crashed" if record.kind == "crash" else "examining it failed"
    return {"outcome": "crash", "error": f"{words}: {record.reason}"}


def write_table(path: str | os.PathLike[str], problems: Sequence[Problem]) -> None:
    """Write a table of problems: markdown if the name ends in ``.md``, else tab-separated.

    The file is replaced atomically; without problems it holds the header row only.
    """
    path = Path(path)
    head = ["problem", "path", "line", "detail", "frames", "seconds", "container", "codec"]
    rows = [[_cell(text) for text in _row(problem)] for problem in problems]
    if path.suffix == ".md":
        table = [head, ["---"] * len(head), *([_escape(text) for text in row] for row in rows)]
        text = "".join(f"| {' | '.join(row)} |\n" for row in table)
    else:
        text = "".join("\t".join(row) + "\n" for row in [head, *rows])
    write_text(path, text)


def _row(problem: Problem) -> list[Any]:
    facts = problem.facts
    seconds = facts.get("seconds")
    return [
        problem.kind,
        problem.path,
        problem.line,
        problem.detail,
        facts.get("frames"),
        None if seconds is None else f"{seconds:.3f}",
        (facts.get("container") or "").split(",")[0],
        facts.get("codec"),
    ]


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def summarize(problems: Sequence[Problem], num_files: int, examples: int = 5) -> str:
    """Lines for the terminal: the number of files with each problem, and the first of them."""
    affected = len({problem.path for problem in problems})
    if not problems:
        return f"{num_files} files, no problems"
    lines = [f"{num_files} files, {num_files - affected} good, {affected} with problems:"]
    counts = Counter(problem.kind for problem in problems)
    for kind, words in KINDS.items():
        if not counts[kind]:
            continue
        lines.append(f"  {kind}: {counts[kind]} ({words})")
        of_kind = [problem for problem in problems if problem.kind == kind]
        shown = [printable_utf8(f"{p.path}: {p.detail}") for p in of_kind[:examples]]
        lines.extend(f"    {line}" for line in shown)
        if len(of_kind) > examples:
            lines.append(f"    ... and {len(of_kind) - examples} more")
    return "\n".join(lines)
