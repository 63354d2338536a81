"""A folder as a read-only S3 bucket on the loopback interface, with latency.

    python benchmarks/slow_store.py FOLDER --delay 0.02 [--port 0]

Prints its port. Each answer comes a time after its request; requests are answered beside each
other, so the delay is latency and limits no rate. Any credentials and any bucket name are accepted.
Answers what Lance asks: GET with a range, HEAD, and ListObjectsV2; ``/-/counts`` returns, as JSON,
the requests and bytes of objects so far. One process with one thread, a tenth of a millisecond of
CPU for a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)", re.I)


class Store:
    """The folder, and what was asked of it.

    Args:
        folder: Its files are the objects.
        delay: Seconds between a request and its answer.
    """

    def __init__(self, folder: Path, delay: float) -> None:
        self.folder = folder.resolve()
        self.delay = delay
        self.counts = {"requests": 0, "bytes": 0}
        self._files: dict[str, tuple[int, bytes]] = {}

    def answer(self, head: bytes) -> bytes:
        """The whole response to a request, of which ``head`` is the line and the headers."""
        method, target = head.split(b" ", 2)[:2]
        address = urlsplit(target.decode())
        if address.path == "/-/counts":
            return _response("200 OK", json.dumps(self.counts).encode())
        self.counts["requests"] += 1
        key = unquote(address.path).lstrip("/").partition("/")[2]  # behind the bucket
        if not key.rstrip("/"):
            return self._listing(parse_qs(address.query))
        return self._object(key, head, method == b"HEAD")

    def _object(self, key: str, head: bytes, only_head: bool) -> bytes:
        found = self._open(key)
        if found is None:
            body = b"" if only_head else b"<Error><Code>NoSuchKey</Code></Error>"
            return _response("404 Not Found", body)
        descriptor, modified = found
        size = os.fstat(descriptor).st_size
        status, begin, end, extra = "200 OK", 0, size, modified
        asked = _RANGE.search(head)
        if asked is not None:
            first, last = asked.groups()
            begin = int(first) if first else max(0, size - int(last))
            end = min(size, int(last) + 1) if first and last else size
            status = "206 Partial Content"
            extra += b"Content-Range: bytes %d-%d/%d\r\n" % (begin, end - 1, size)
        if only_head:
            return _response(status, b"", extra, end - begin)
        self.counts["bytes"] += end - begin
        return _response(status, os.pread(descriptor, end - begin, begin), extra)

    def _open(self, key: str) -> tuple[int, bytes] | None:
        """Descriptor and headers of an object."""
        if key not in self._files:
            path = (self.folder / key).resolve()
            if not path.is_relative_to(self.folder) or not path.is_file():
                return None
            status = path.stat()
            headers = f'ETag: "{status.st_mtime_ns:x}-{status.st_size:x}"\r\n'
            headers += f"Last-Modified: {formatdate(status.st_mtime, usegmt=True)}\r\n"
            self._files[key] = (os.open(path, os.O_RDONLY), headers.encode())
        return self._files[key]

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        """All keys with a prefix, cut at the delimiter; in one page."""
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        parts, folders = [], []
        for path in files:
            key = path.relative_to(self.folder).as_posix()
            if not key.startswith(prefix):
                continue
            inside, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if cut:
                folders.append(prefix + inside + cut)
                continue
            status = path.stat()
            parts.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{status.st_size}</Size>"
                f"<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f'<ETag>"{status.st_mtime_ns:x}"</ETag></Contents>'
            )
        parts += [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in dict.fromkeys(folders)
        ]
        content = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<KeyCount>{len(parts)}</KeyCount><IsTruncated>false</IsTruncated>"
            f"{''.join(parts)}</ListBucketResult>"
        )
        return _response("200 OK", content.encode(), b"Content-Type: application/xml\r\n")


def _response(status: str, body: bytes, headers: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n".encode()
    return head + headers + b"\r\n" + body


class Connection(asyncio.Protocol):
    """One connection of a client; requests have no body."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer complete requests after the delay."""
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            loop = asyncio.get_running_loop()
            loop.call_later(self._store.delay, self._answer, b"%s\r\n" % head)

    def _answer(self, head: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._store.answer(head))  # type: ignore[attr-defined]


async def serve(store: Store, port: int) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(store), "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the folder."""
    parser = argparse.ArgumentParser(description="A folder as an S3 bucket with latency.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds (default: 0.02)")
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args(argv)
    asyncio.run(serve(Store(args.folder, args.delay), args.port))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
