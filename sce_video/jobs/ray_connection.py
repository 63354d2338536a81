"""The connection of a driver to a Ray cluster: reachable, of this version, its loss named."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from sce_video.utils.errors import MissingPackageError, UserError
from sce_video.version import __version__

_CONNECT_SECONDS, _CHECK_SECONDS = 10.0, 60.0
_WATCH = "import sys; sys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"
_ENDED = (
    "error: this program was ended, by a signal or by Ray since the Ray process of this machine "
    "(raylet) has ended: see ray status and start it again; the same command resumes from here"
)


class ClusterError(UserError, RuntimeError):
    """A Ray cluster cannot be reached, has another version of this package, or was lost."""


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            f"--ray needs Ray ({error}): pip install sce-video[cluster]"
        ) from error
    return ray


@contextlib.contextmanager
def connection(ray: Any, address: str) -> Iterator[None]:
    if ray.is_initialized():  # the caller's, who ends it
        yield
        return
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ClusterError(
            f"cannot connect to the Ray cluster {address!r}: {reason} (ray start --head starts "
            "one, ray status shows it)"
        ) from error
    try:
        with watched():
            yield
    except ray.exceptions.RayError as error:
        raise ClusterError(f"the Ray cluster {address!r} was lost: {error}") from error
    finally:
        ray.shutdown()


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Have another process say so if Ray ends this one, as it does at once with its raylet."""
    command = [sys.executable, "-I", "-S", "-c", _WATCH, _ENDED]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        watcher.communicate(b"left")


def _check_reachable(address: str) -> None:
    """Raise ClusterError at once where Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"there is no Ray cluster at {address!r}: {error}") from error


def check_versions(ray: Any) -> None:
    """Raise ClusterError unless every node has this version of the package."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def version() -> str:  # nested, so it is sent whole: there may be no sce_video to import
        try:
            from sce_video.version import __version__ as found
        except Exception as error:
            return f"none ({type(error).__name__}: {error})"
        return str(found)

    task = ray.remote(version)
    found = {}
    for node in ray.nodes():
        if node["Alive"]:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote = task.options(num_cpus=0, scheduling_strategy=where)
            found[node["NodeManagerAddress"], node["NodeID"]] = remote.remote()
    for (host, _), answer in found.items():
        try:
            theirs = ray.get(answer, timeout=_CHECK_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise ClusterError(
                f"node {host} of the Ray cluster does not answer after {_CHECK_SECONDS:g} s"
            ) from error
        except ray.exceptions.RayError:
            continue  # the node has gone
        if theirs != __version__:
            raise ClusterError(
                f"node {host} of the Ray cluster has sce_video {theirs}, here it is {__version__}: "
                "install the same version on all nodes"
            )
