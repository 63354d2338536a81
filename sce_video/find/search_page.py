"""Server of the search page.

:func:`serve` opens an index and runs the server. :class:`~sce_video.find.search_state.SearchState`
computes the responses, :mod:`~sce_video.find.search_api` defines their form, and
:mod:`~sce_video.find.search_connections` decides which requests are accepted.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal
from urllib.parse import quote

import numpy as np
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse

from sce_video.datasets.sources import is_elsewhere, is_table_folder
from sce_video.datasets.video_list import IMAGE_EXTENSIONS, VIDEO_EXTENSIONS
from sce_video.find import search_api as api
from sce_video.find.columns import columns_of_index
from sce_video.find.index import read_index
from sce_video.find.index_network import IndexNetwork, checkpoint_of_index
from sce_video.find.label_list import LabelList, label_file
from sce_video.find.search_connections import TEMPLATES, Guard, server_config
from sce_video.find.search_media import (
    PLAYABLE,
    CallError,
    animation,
    kill_fork_server,
    middle_frame,
    whole,
)
from sce_video.find.search_state import GoneError, NoRowError, SearchState
from sce_video.inference.clips import clip_name
from sce_video.options.search import SearchOptions
from sce_video.pages.parts import plotly_library
from sce_video.utils.command import explain, printable, printable_utf8
from sce_video.utils.html_template import render_template
from sce_video.version import __version__

#: Descriptions of responses by status, as FastAPI expects them.
Responses = dict[int | str, dict[str, Any]]
#: HTTP status for each kind of error.
_STATUS: dict[type[Exception], int] = {
    NoRowError: 404,
    GoneError: 410,
    CallError: 422,
    ValueError: 422,
    OSError: 500,
    Exception: 500,
}
#: Largest size in bytes of an uploaded video, which is written to a temporary file.
UPLOAD_LIMIT = 2 * 2**30
#: Largest size in bytes of an uploaded image.
IMAGE_LIMIT = 64 * 2**20
# Files that the page loads. It loads the scripts of the map last. Plotly is not a template.
_SCRIPTS = ("plotly.js", "feature_map.js")
_MODULES = tuple(f"search_{name}.js" for name in "page query cards labels segments".split())
_STYLES = ("theme.css", "parts.css", "search_page.css")


def create_app(
    state: SearchState,
    token: str,
    port: int,
    upload_limit: int = UPLOAD_LIMIT,
    writable: bool = False,
) -> Guard:
    """Build the web application, wrapped in its access control.

    Args:
        state: Index, labels and worker processes.
        token: Token that the link contains.
        port: Port of the server.
        upload_limit: Maximum size, in bytes, of a video dropped onto the page.
        writable: Whether programs may write labels.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> Any:
        # Start the workers in the background, because their imports take some seconds.
        threading.Thread(target=state.start, daemon=True).start()
        yield
        state.close()

    app = FastAPI(
        title="sce-video search",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{api.PREFIX}/openapi.json",
    )
    _answer_errors(app)
    _add_page(app, state, token, port, upload_limit)
    problems: Responses = {
        status: {"model": api.ErrorAnswer} for status in (403, 413, *sorted({*_STATUS.values()}))
    }
    router = APIRouter(
        prefix=api.PREFIX,
        responses=problems,
        # This only describes the token in openapi.json. Guard has already checked it.
        dependencies=[Depends(HTTPBearer(auto_error=False, description="The token of the link."))],
    )
    _add_media(router, state)
    _add_search(router, state)
    _add_upload(router, state, upload_limit)
    _add_labels(router, state)
    app.include_router(router)
    return Guard(app, token, port, writable)


def _answer_errors(app: FastAPI) -> None:
    """Answer every error with a sentence in JSON."""

    @app.exception_handler(RequestValidationError)
    def _(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"error": f"{where}: {first['msg']}"}, status_code=422)

    @app.exception_handler(StarletteHTTPException)
    def _(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, status_code=error.status_code)

    for kind, status in _STATUS.items():

        @app.exception_handler(kind)
        def _(_: Request, error: Exception, status: int = status) -> JSONResponse:
            message = explain(error)
            if message is None:  # a bug, whose traceback is in the terminal
                name = type(error).__name__
                message = f"the server failed ({name}: {error}). Details are in its terminal"
            text = message.encode("utf-8", "replace").decode("utf-8")
            return JSONResponse({"error": text}, status_code=status)


# -- the page ------------------------------------------------------------------------------


def _add_page(app: FastAPI, state: SearchState, token: str, port: int, limit: int) -> None:
    """Add the page and the files that it loads."""
    # The addresses of pictures contain this token, so that a browser does not show cached pictures
    # of another index that was served on the same port.
    session = secrets.token_hex(4)

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        values = {
            "nonce": nonce,
            "root": os.path.basename(state.index.root).encode("utf-8", "replace").decode("utf-8"),
            "styles": _STYLES,
            "settings": {
                "session": session,
                "scripts": _SCRIPTS,
                "playable": sorted(PLAYABLE),
                "extensions": VIDEO_EXTENSIONS,
                "images": IMAGE_EXTENSIONS,
                "limit": limit,
                "imageLimit": min(limit, IMAGE_LIMIT),
            },
        }
        response = HTMLResponse(render_template(TEMPLATES, "search_page.html", values))
        # Plotly needs the two "unsafe-" sources, because it adds style rules and, for WebGL maps,
        # compiles code. Only scripts with the nonce of this response can run.
        response.headers["Content-Security-Policy"] = (
            f"default-src 'none'; script-src 'nonce-{nonce}' 'unsafe-eval'; "
            "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
            "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        response.set_cookie(f"sce_video_{port}", token, httponly=True, samesite="strict")
        return response

    @cache
    def content(name: str) -> bytes:
        if name == "plotly.js":
            return plotly_library()
        if name not in (*_STYLES, *_SCRIPTS, *_MODULES):
            raise HTTPException(404, f"there is no file {name}")
        return files(TEMPLATES).joinpath("templates", name).read_bytes()

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(content(name), media_type=kind)


# -- pictures and videos -------------------------------------------------------------------


def _content(*kinds: str) -> Responses:
    """Describe responses with files of these content types."""
    schema = {"type": "string", "format": "binary"}
    return {200: {"content": {kind: {"schema": schema} for kind in kinds}}}


def _add_media(router: APIRouter, state: SearchState) -> None:
    """Add frames, clips and files."""
    # The content of a row does not change while the server runs.
    kept = {"Cache-Control": "private, max-age=3600"}

    def played(content: bytes, kind: str = "video") -> Response:
        if not content:
            raise HTTPException(404, "the frames of this video are too small to be played")
        media_type = "image/jpeg" if kind == "image" else "video/mp4"
        return Response(content, media_type=media_type, headers=kept)

    @router.get("/thumb/{row}", response_class=Response, responses=_content("image/jpeg"))
    def thumb(row: int) -> Response:
        """Return a small frame from the middle of a video."""
        picture = state.picture(row, middle_frame)
        return Response(picture, media_type="image/jpeg", headers=kept)

    @router.get("/clip/{row}", response_class=Response, responses=_content("video/mp4"))
    def clip(row: int) -> Response:
        """Return a small clip of three seconds from the middle of a video."""
        return played(state.picture(row, animation))

    shown = _content("video/mp4", "image/jpeg")

    @router.get("/upload/{upload}", response_class=Response, responses=shown)
    def uploaded(upload: str) -> Response:
        """Return a small clip of an uploaded video, or the uploaded image."""
        found = state.upload(upload)
        return played(found.content, found.kind)

    kinds = _content(*sorted({*PLAYABLE.values()}), "application/octet-stream")

    @router.get("/video/{row}", response_class=Response, responses=kinds)
    def video(row: int) -> Response:
        """Return the file itself, or an mp4 for a row of a table. Range requests are supported."""
        file = state.file(row)
        if is_elsewhere(file):
            return Response(state.picture(row, whole), media_type="video/mp4", headers=kept)
        kind = PLAYABLE.get(os.path.splitext(file)[1].lower(), "application/octet-stream")
        return FileResponse(file, media_type=kind)


# -- search --------------------------------------------------------------------------------


def _add_search(router: APIRouter, state: SearchState) -> None:
    """Add the list of videos, the map, filters and searches."""
    router.get("/videos")(state.describe)
    router.get("/map")(state.map)
    router.post("/missing")(state.missing)

    @router.post("/rows")
    def rows(filters: api.FilterRequest) -> api.RowsAnswer:
        """Return the rows that pass the filters."""
        return api.RowsAnswer(rows=np.flatnonzero(state.matching(filters)).tolist())

    @router.post("/search")
    def search(search: api.SearchRequest) -> api.ResultsAnswer:
        """Return the videos or moments that resemble examples, a text or a label most."""
        found = state.search(search)
        failures: list[tuple[str, str]] = []
        more = len(found) == search.k
        if search.refined:
            found, failures = state.refine(search, found)
        return api.ResultsAnswer(
            rows=[match.row for match in found],
            names=[state.names[match.row] for match in found],
            similarity=[round(match.similarity, 5) for match in found],
            spans=[None if m.start is None or m.end is None else (m.start, m.end) for m in found],
            more=more,
            failures=[printable_utf8(f"{path}: {reason}") for path, reason in failures],
        )


def _add_upload(router: APIRouter, state: SearchState, video_limit: int) -> None:
    """Add the upload of a file that becomes an example."""
    too_long: Responses = {413: {"model": api.ErrorAnswer}}
    body = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}

    @router.post("/upload", responses=too_long, openapi_extra={"requestBody": body})
    async def upload(
        request: Request, name: Annotated[str, Query(max_length=1000)]
    ) -> api.UploadAnswer:
        """Embed a video or an image for later searches. The request body is the file itself."""
        kind = os.path.splitext(name)[1].lower()
        if kind not in VIDEO_EXTENSIONS + IMAGE_EXTENSIONS:
            known = " ".join(VIDEO_EXTENSIONS + IMAGE_EXTENSIONS)
            raise ValueError(
                f"{name!r} is not the name of a video or an image. Known endings: {known}"
            )
        what: Literal["image", "video"] = "image" if kind in IMAGE_EXTENSIONS else "video"
        limit = min(IMAGE_LIMIT, video_limit) if what == "image" else video_limit
        too_large = HTTPException(
            413, f"the {what} is larger than {limit / 2**20:.0f} MB. Upload a part of it, or run "
            "sce-video search FILE --index INDEX",
        )  # fmt: skip
        if int(request.headers.get("content-length", 0)) > limit:
            raise too_large
        with tempfile.NamedTemporaryFile(prefix="sce_video_query_", suffix=kind) as file:
            size = 0
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large
                file.write(part)
            file.flush()
            if not size:
                raise ValueError("the file is empty (0 bytes)")
            identity = await run_in_threadpool(state.add_upload, file.name)
            shown = bool(state.upload(identity).content)
            return api.UploadAnswer(upload=identity, kind=what, shown=shown)


def _add_labels(router: APIRouter, state: SearchState) -> None:
    """Add the requests for labels of videos and segments, and for clips of segments."""
    router.post("/label")(state.set_label)
    router.post("/undo")(state.undo_label)
    router.post("/split")(state.write_split)
    router.get("/segments/{row}")(state.describe_segments)
    router.post("/segments/{row}")(state.add_segment)
    router.post("/segments/{row}/remove")(state.remove_segment)
    router.post("/segments/{row}/undo")(state.undo_segment)

    @router.get("/cut/{row}", response_class=Response, responses=_content("video/mp4"))
    def cut(row: int, start: float, end: float) -> Response:
        """Return a frame-accurate clip of a video as mp4, with its audio.

        Start and end are in seconds and at most ten minutes apart. The clip is encoded again.
        """
        content = state.cut(row, start, end)
        name = quote(os.fsencode(clip_name(row, state.index.path(row), start, end)))
        saved = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return Response(content, media_type="video/mp4", headers=saved)


#: Loopback address, so that only users of this machine can connect.
HOST = "127.0.0.1"
#: Page that redirects the browser to the link.
_REDIRECT = (
    '<!DOCTYPE html><meta charset="utf-8"><title>sce-video search</title>'
    '<meta http-equiv="refresh" content="0; url={0}"><a href="{0}">Open the search page</a>\n'
)


def serve(options: SearchOptions) -> None:
    """Print the link of an index's search page, and serve the page until Ctrl-C or SIGTERM.

    Raises:
        FileNotFoundError: If there is no index, or no checkpoint at the given path.
        ValueError: If the index is empty or a table of videos, the checkpoint does not belong to
            the index, the list of labels cannot be read, or the port is in use.
    """
    folder = options.folder
    if is_table_folder(folder):
        raise ValueError(
            f"{folder} is a table of videos, but the page needs the folder of an index to store "
            "labels. Run sce-video index TABLE --out INDEX first"
        )
    index = read_index(folder)
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} contains no video that could be decoded")
    network = IndexNetwork(options.checkpoint, options.config, options.device)
    if network.checkpoint is not None:
        network = replace(network, checkpoint=checkpoint_of_index(index, network.checkpoint))
    label_list = LabelList(label_file(folder, options.labels))
    state = SearchState(index, network, label_list, columns_of_index(index, options.columns))
    # Ctrl-C raises KeyboardInterrupt until the server installs its own signal handlers.
    with ExitStack() as at_end, _listen(options.port) as listening, suppress(KeyboardInterrupt):
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(24)
        link = f"http://{HOST}:{port}/?token={token}"
        print(printable(f"{len(index)} videos of {index.root}; labels: {label_list.file}"))
        if problem := state.network_problem():
            print(printable(f"note: {problem}"))
        print(f"open {link}\nPress Ctrl-C to stop", flush=True)
        # Without a desktop, webbrowser may start a text browser, which takes over the terminal.
        displays = {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ)
        desktop = sys.platform in ("darwin", "win32") or displays
        if not options.no_open and desktop and "SSH_CONNECTION" not in os.environ:
            at_end.enter_context(_opened_in_browser(link))
        app = create_app(state, token, port, writable=options.writable)
        try:
            _Server(server_config(app)).run(sockets=[listening])
        finally:
            state.close()
            kill_fork_server()


@contextmanager
def _opened_in_browser(link: str) -> Iterator[None]:
    """Open a link in the user's browser through a file that exists while the block runs.

    The link contains the token, and every user of the machine can see the arguments of a process.
    The browser is therefore started with the name of a file that redirects to the link and that
    only this user can read.
    """
    with ExitStack() as at_end:
        with suppress(OSError):  # If the file cannot be written, the printed link is still there.
            file = at_end.enter_context(
                tempfile.NamedTemporaryFile("w", prefix="sce_video_link_", suffix=".html")
            )
            file.write(_REDIRECT.format(escape(link)))
            file.flush()
            webbrowser.open(Path(file.name).as_uri())
        yield


class _Server(uvicorn.Server):
    """Server that stops without any message at SIGINT and SIGTERM."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown."""
        # The inherited method is not called, because it raises the signal again after the shutdown.
        self.should_exit = True
        # uvicorn would report every response that the shutdown cuts off while a browser reads it.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def _listen(port: int) -> socket.socket:
    """Return a socket on the loopback address."""
    try:
        # Create the socket before the server, so that the link can be printed with its port.
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ValueError(
            f"port {port} of {HOST} cannot be used ({reason}). Choose another --port, or omit it"
        ) from error
