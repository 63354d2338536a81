"""Run the search page on the loopback address until Ctrl-C."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import webbrowser
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import uvicorn

from sce_video.apis.index import read_index
from sce_video.apis.search import check_checkpoint
from sce_video.apis.search_server.app import create_app
from sce_video.apis.search_server.label_list import LabelList
from sce_video.apis.search_server.state import Network, SearchState, default_label_file
from sce_video.apis.search_server.workers import kill_fork_server
from sce_video.datasets.source_names import is_table
from sce_video.utils.printable import printable

HOST = "127.0.0.1"
_CLOSE_SECONDS = 1  # for a browser that is still reading a video


@dataclass(frozen=True)
class ServeOptions:
    """How the page is served.

    Attributes:
        index: Folder of the index.
        network: Where the network of the index is.
        labels: List of the labels that are given on the page; None for ``INDEX/labels.txt``.
        port: 0 takes a free one.
        open_browser: Whether the link is opened in the user's browser.
    """

    index: str
    network: Network = field(default_factory=Network)
    labels: str | None = None
    port: int = 0
    open_browser: bool = False


def serve(options: ServeOptions) -> None:
    """Serve the search page of an index until Ctrl-C or SIGTERM; prints the link.

    Raises:
        FileNotFoundError: there is no index, or no checkpoint at the given path.
        ValueError: the index is empty or of a table of videos, the checkpoint is not that of the
            index, the list of labels cannot be read, or the port is taken.
    """
    index = read_index(options.index)
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} contains no video that could be decoded")
    if is_table(index.root):
        raise ValueError(f"{options.index} is of a table of videos: the page plays files")
    checkpoint = options.network.checkpoint
    if checkpoint is not None:
        if not os.path.isfile(checkpoint):
            raise FileNotFoundError(f"no checkpoint at {checkpoint}")
        check_checkpoint(index, checkpoint)
    labels = LabelList(Path(options.labels) if options.labels else default_label_file(index))
    state = SearchState(index, options.network, labels)
    # Interrupted here: before the server has handlers of its own.
    with _listen(options.port) as listening, suppress(KeyboardInterrupt):
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(24)
        link = f"http://{HOST}:{port}/?token={token}"
        print(printable(f"{len(index)} videos of {index.root}; labels: {labels.file}"))
        if problem := state.network_problem():
            print(printable(f"note: {problem}"))
        print(f"open {link}\nCtrl-C ends it", flush=True)
        if options.open_browser:
            webbrowser.open(link)
        config = uvicorn.Config(
            create_app(state, token, port),
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
        )
        try:
            _Server(config).run(sockets=[listening])
        finally:
            state.close()
            kill_fork_server()


class _Server(uvicorn.Server):
    """Ends in silence at SIGINT and SIGTERM, also while a browser is reading."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Neither repeats the signal afterwards, as its parent does, nor reports cut answers."""
        self.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def _listen(port: int) -> socket.socket:
    """A socket on the loopback address."""
    if not 0 <= port < 2**16:
        raise ValueError(f"a port is a number of 0 to 65535, got {port}")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen()  # the link is printed before the server runs
    except OSError as error:
        listening.close()
        raise ValueError(
            f"port {port} of {HOST} cannot be used ({error.strerror}): give another --port, or none"
        ) from error
    return listening


def can_open_browser() -> bool:
    """Whether there is a desktop here; a text browser would take over the terminal."""
    if "SSH_CONNECTION" in os.environ:
        return False
    desktop = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return desktop or sys.platform in ("darwin", "win32")
