"""An S3 server on this machine, with boto3 to look at it from outside."""

from __future__ import annotations

import random
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl


def forget_sessions() -> None:
    """Let the next access look for credentials and endpoint again; a process does so once."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


Answer = Callable[[dict[str, Any], Callable], Iterable[bytes]]


def change_answers(monkeypatch: Any, change: Callable[[Answer], Answer]) -> None:
    """Put something before the application of the server, until the end of the test."""
    from moto.server import DomainDispatcherApplication as Application

    answer = Application.__call__

    def changed(self: Any, environ: dict[str, Any], start: Callable) -> Iterable[bytes]:
        return change(lambda *arguments: answer(self, *arguments))(environ, start)

    monkeypatch.setattr(Application, "__call__", changed)


def busy(share: float) -> Callable[[Answer], Answer]:
    """Answer a share of all attempts with 503 SlowDown or 500; which, does not depend on timing."""
    attempts: Counter[str] = Counter()

    def change(answer: Answer) -> Answer:
        def unreliable(environ: dict[str, Any], start: Callable) -> Iterable[bytes]:
            query = sorted(p for p in parse_qsl(environ["QUERY_STRING"]) if p[0] != "uploadId")
            request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO'].split('/')[2:]} {query}"
            attempts[request] += 1
            chance = random.Random(f"{request} {attempts[request]}").random()
            if chance >= share:
                return answer(environ, start)
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            code, status = (
                ("SlowDown", "503 Service Unavailable")
                if chance < share / 2
                else ("InternalError", "500 Internal Server Error")
            )
            start(status, [("Content-Type", "application/xml")])
            text = f"<Error><Code>{code}</Code><Message>later</Message></Error>"
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else text.encode()]

        return unreliable

    return change


@dataclass(frozen=True)
class Bucket:
    """A bucket of the server, read and written with boto3 (not with what is tested)."""

    name: str
    endpoint: str
    client: Any

    def url(self, key: str) -> str:
        """The URL of an object."""
        return f"s3://{self.name}/{key}"

    def put(self, key: str, content: bytes) -> str:
        """Write an object; returns its URL."""
        self.client.put_object(Bucket=self.name, Key=key, Body=content)
        return self.url(key)

    def get(self, key: str) -> bytes:
        """Content of an object."""
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def keys(self) -> list[str]:
        """Keys of all objects, sorted."""
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return sorted(entry["Key"] for entry in found)

    def unfinished_uploads(self) -> list[str]:
        """Keys of multi-part uploads that are neither completed nor aborted."""
        found = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return [entry["Key"] for entry in found]

    def check_credentials_after(self, requests: float) -> None:
        """Let the server refuse unknown keys after some more requests; it knows none."""
        data, headers = str(requests).encode(), {"Content-Type": "text/plain"}
        address = f"{self.endpoint}/moto-api/reset-auth"
        urllib.request.urlopen(urllib.request.Request(address, data, headers)).close()

    def vanish(self) -> None:
        """Delete the bucket with all objects."""
        for key in self.keys():
            self.client.delete_object(Bucket=self.name, Key=key)
        self.client.delete_bucket(Bucket=self.name)
