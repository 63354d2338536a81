"""Script that evaluates SQL conditions on a database of columns, in a process of its own.

Neither the database nor the conditions are trusted. SQLite cannot be interrupted inside a function
such as ``instr``, and a view in an untrusted database may never end. The operating system therefore
limits the memory of this process and ends it when its time is up. The script starts in about 50 ms,
because it imports only a few modules of the standard library.

When the script starts, it sends the three parts of :meth:`Database.facts`. Each request then
consists of two lines: the number of videos and the condition. The script answers with any number of
messages that begin with ``KEYS``, followed by a message that begins with ``DONE`` or ``FAILED``.
"""

from __future__ import annotations

import resource
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

#: SQL statement that creates the table of facts about the columns
FACTS = "CREATE TABLE facts (text TEXT, video_of_row BLOB)"
#: Name of the table with the columns. Conditions may read only this table.
TABLE = "videos"
#: Column with the number of the video. A column of a CSV file cannot have this name.
KEY = "#"
#: First byte of a message with the numbers of matching videos
KEYS = b"+"
#: First byte of the message that ends the answer to a condition
DONE = b"."
#: First byte of a message with the reason why a condition failed
FAILED = b"-"
#: Largest number of bytes in a cell, and in a message about a condition
LONGEST_CELL = 1_000_000
#: Largest number of bytes in the description of the columns
LONGEST_FACTS = 8 * 2**20
#: Bytes of memory that the process may use in addition to the facts and a database in memory
_MEMORY = 2**30
#: Number of videos to which a condition is applied at a time
_BLOCK = 16384
#: SQL functions that a condition may call
_FUNCTIONS = frozenset(
    "abs coalesce date datetime glob group_concat ifnull instr julianday length like lower ltrim "
    "max min nullif round rtrim strftime substr substring time trim typeof upper".split()
)
#: Limits on a condition, which may be untrusted
_LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_LENGTH: LONGEST_CELL,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
}


class Database:
    """Database of columns. A condition can read only the table with the columns.

    Args:
        base: Connection to the database.
        longest: Largest number of bytes that a single value in the table of facts may have.
    """

    def __init__(self, base: sqlite3.Connection, longest: int) -> None:
        self._base, self._readable, self._selects = base, {"sqlite_master", "facts"}, 0
        base.executescript(
            "PRAGMA trusted_schema = OFF; PRAGMA query_only = ON; PRAGMA cell_size_check = ON"
        )
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
        base.set_authorizer(self._allow)

    def facts(self) -> tuple[bytes, bytes, bytes]:
        """Return what the database states about itself.

        Returns:
            The SQL statement that created the table of columns, the description of the columns as
            JSON, and the video number of each row of the index, int32.

        Raises:
            ValueError: If the database does not consist of the two expected tables, or a value has
                the wrong type.
        """
        self._selects = 0
        query = "SELECT type, name, sql FROM sqlite_master LIMIT 3"
        found = {(kind, name): sql for kind, name, sql in self._base.execute(query)}
        made = found.pop(("table", TABLE), None)
        if found != {("table", "facts"): FACTS} or not isinstance(made, str):
            raise ValueError("it is not a database of columns")
        self._selects = 0
        query = "SELECT text, video_of_row FROM facts LIMIT 1"
        text, video_of_row = self._base.execute(query).fetchone() or ("", None)
        if not isinstance(text, str) or not isinstance(video_of_row, bytes):
            raise ValueError("its entries have the wrong types")
        return made.encode(), text.encode(), video_of_row

    def passing(self, count: int, where: str) -> Iterator[bytes]:
        """Yield the numbers of the matching videos as comma-separated text, block by block.

        For half a million videos, text is twice as fast as Python integers.
        """
        self._readable = {TABLE}
        for limit, most in _LIMITS.items():
            self._base.setlimit(limit, most)
        # Even without videos, the query runs once, so that a mistake in the condition is found.
        for at in range(0, max(count, 1), _BLOCK):
            self._selects = 0
            # Put the condition on its own line, so that a comment in it cannot hide the bracket.
            ((keys,),) = self._base.execute(
                f'SELECT group_concat("{KEY}") FROM {TABLE} '
                f'WHERE "{KEY}" >= {at} AND "{KEY}" < {at + _BLOCK} AND (\n{where}\n)'
            )
            if keys:
                yield keys.encode()

    def _allow(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        """Tell SQLite whether it may perform an action that a query requires."""
        # The query itself is the only SELECT, so a condition cannot contain or add another query.
        if action == sqlite3.SQLITE_SELECT:
            self._selects += 1
            allowed = self._selects == 1
        elif action == sqlite3.SQLITE_READ:
            allowed = first in self._readable
        else:
            allowed = action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FUNCTIONS
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def main(number: int, address: str, seconds: float, blob: int, spare: int) -> None:
    """Send the facts of a database, then answer requests until the parent closes the pipe.

    Args:
        number: File descriptor of the pipe to the parent.
        address: URI of the database file, or ``:memory:`` if the parent sends its content first.
        seconds: Time limit in seconds for reading the facts, and for each request.
        blob: Number of bytes of the video numbers in the table of facts.
        spare: Number of bytes of the database that the parent sends; 0 for a file.
    """
    pipe = Connection(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    memory = _MEMORY + 4 * (blob + spare)
    with suppress(ValueError, OSError):  # the user may have set a lower limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    content = pipe.recv_bytes(spare) if spare else b""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    base = sqlite3.connect(address, uri=True)
    if spare:
        base.deserialize(content)
        del content
    database = Database(base, max(blob, LONGEST_FACTS))
    for part in database.facts():
        pipe.send_bytes(part)
    while True:
        signal.setitimer(signal.ITIMER_REAL, 0)
        count, where = pipe.recv_bytes(2**20).split(b"\n", 1)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            for keys in database.passing(int(count), where.decode()):
                pipe.send_bytes(KEYS + keys)
            pipe.send_bytes(DONE)
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            pipe.send_bytes(FAILED + (str(error) or type(error).__name__).encode()[:10_000])


if __name__ == "__main__":
    with suppress(EOFError, ConnectionError):
        numbers = int(sys.argv[4]), int(sys.argv[5])
        main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), *numbers)
