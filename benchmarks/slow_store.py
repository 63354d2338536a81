"""Compare a table in an object store that answers after 20 ms with the same table on a local disk.

    python benchmarks/slow_store.py OUT [--files VIDEO ...] [--delay 0.02] [--json OUT]

A server of S3's requests (read, size, list) for the files below OUT answers each request after
``--delay`` seconds, any number at once, in its own process. Loader workers read two augmented clips
of 8 frames of each video in batches. Wall time counts, because a store costs waiting, not work.
Local and remote tables take turns, and results are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from mmengine.registry import init_default_scope
from peer_sides import CLIP_SECONDS, FRAMES, SIZE
from peers import originals, repacked

from sce_video.data_tools.table_fill import import_videos
from sce_video.engine.runner import VideoRunner
from sce_video.options.prepare import ImportOptions
from sce_video.utils.command import command
from sce_video.utils.files import write_json

CLIPS = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=CLIP_SECONDS, num_frames=FRAMES),
    dict(type="DecodeClips"),
    dict(type="RandomResizedCropClips", size=SIZE),
    dict(type="PackClips"),
]


class Store(asyncio.Protocol):
    """Server that answers GET, with ranges, HEAD and lists of objects, below the current folder."""

    delay = 0.02

    def connection_made(self, transport: Any) -> None:
        """Keep the connection open for many requests."""
        self._transport, self._left = transport, b""

    def data_received(self, data: bytes) -> None:
        """Answer complete requests one after the other, each after the delay."""
        *requests, self._left = (self._left + data).split(b"\r\n\r\n")
        for request in requests:
            asyncio.get_running_loop().call_later(self.delay, self._answer, request.decode())

    def _answer(self, request: str) -> None:
        method, target = request.split(" ", 2)[:2]
        address = urlsplit(target)
        query = {k: v[0] for k, v in parse_qs(address.query).items()}
        file, status, facts = Path(unquote(address.path).lstrip("/")), "200 OK", ""
        if "list-type" in query:
            body = _listed(file, query.get("prefix", "")).encode()
            size = len(body)
        elif not file.is_file():
            body, status = b"<Error><Code>NoSuchKey</Code></Error>", "404 Not Found"
            size = len(body)
        else:
            size = end = file.stat().st_size
            begin = 0
            asked = re.search(r"\r\nrange: bytes=(\d*)-(\d*)", request, re.I)
            if asked:
                first, last = asked.groups()
                begin = int(first) if first else max(0, size - int(last))
                end = min(size, int(last) + 1) if first and last else size
                status = "206 Partial Content"
                facts = f"Content-Range: bytes {begin}-{end - 1}/{size}\r\n"
            facts += f'ETag: "{size}"\r\nLast-Modified: Sat, 28 Nov 2026 00:00:00 GMT\r\n'
            body = b""
            if method != "HEAD":
                with open(file, "rb") as opened:
                    body = os.pread(opened.fileno(), end - begin, begin)
                size = len(body)
        head = f"HTTP/1.1 {status}\r\n{facts}Content-Length: {size}\r\n\r\n"
        self._transport.write(head.encode() + (b"" if method == "HEAD" else body))


def _listed(bucket: Path, prefix: str) -> str:
    """Return the answer to ListObjectsV2."""
    files = sorted(f for f in bucket.rglob("*") if f.is_file())
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{file.stat().st_size}</Size>"
        "<LastModified>2026-11-28T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
        for file in files
        if (key := file.relative_to(bucket).as_posix()).startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"


def serve(folder: Path, delay: float, port: Any) -> None:
    """Serve a folder, whose sub-folders are buckets, until the process is ended."""
    os.chdir(folder)
    Store.delay = delay

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Store, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def make_table(args: argparse.Namespace) -> Path:
    """Write a table of ``--videos`` repacked videos, which are links to a few."""
    table, videos = args.out / "bucket" / "videos.lance", args.out / "videos"
    if not table.exists():
        videos.mkdir(parents=True, exist_ok=True)
        files = repacked(args, originals(args))
        for number in range(args.videos):
            os.link(files[number % len(files)], videos / f"{number:05}.mp4")
        table.parent.mkdir()
        import_videos(ImportOptions(source=videos, table=table, workers=1))
    return table


def samples_per_second(table: str, args: argparse.Namespace, seed: int) -> float:
    """Measure one epoch, from the second batch of each worker on."""
    loader = VideoRunner.build_dataloader(
        dict(
            batch_size=args.batch,
            num_workers=args.workers,
            drop_last=True,
            sampler=dict(type="ResumableSampler", seed=seed, min_samples=args.samples),
            dataset=dict(
                type="LanceVideoDataset",
                data_root=table,
                block_size=args.block_size,
                pipeline=CLIPS,
            ),
            collate_fn=dict(type="pseudo_collate"),
        )
    )
    begin, batches, left_out = 0.0, 0, max(1, args.workers)
    for number, _ in enumerate(loader, 1):
        if number == left_out:
            begin, batches = time.perf_counter(), 0
        else:
            batches += 1
    return args.batch * batches / (time.perf_counter() - begin)


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="for the videos and the table")
    parser.add_argument("--files", nargs="+", default=[], help="videos; default: generated ones")
    parser.add_argument("--videos", type=int, default=256)
    parser.add_argument("--samples", type=int, default=1024, help="of an epoch")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=1024, help="of the reader, bytes")
    parser.add_argument("--delay", type=float, default=0.02, help="of a request, seconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    init_default_scope("sce_video")
    table = make_table(args)
    ours, theirs = multiprocessing.Pipe()
    options = args.out, args.delay, theirs
    server = multiprocessing.get_context("spawn").Process(target=serve, args=options, daemon=True)
    server.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ours.recv()}",
        **{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
    }
    found: dict[str, list[float]] = {str(table): [], "s3://bucket/videos.lance": []}
    for seed in range(args.rounds):
        for name, speeds in found.items():
            speeds.append(samples_per_second(name, args, seed))
            print(name, round(speeds[-1], 1), "samples/s", flush=True)
    local, remote = (statistics.median(speeds) for speeds in found.values())
    ratios = [r / s for s, r in zip(*found.values(), strict=True)]
    result = {
        **{k: getattr(args, k) for k in ("batch", "workers", "block_size", "delay", "samples")},
        **{"local": round(local, 1), "store": round(remote, 1), "ratio": round(remote / local, 3)},
        **{"ratio_of_rounds": [round(min(ratios), 3), round(max(ratios), 3)]},
    }
    print(json.dumps(result))
    if args.json:
        write_json(args.json, result)
    server.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
