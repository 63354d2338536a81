"""The search page and its server.

Programs use the same interface as the page (:mod:`sce_video.find.search_api`).
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
from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Query, Request
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

#: Status of the response to a request that raises an error.
_STATUS: dict[type[Exception], int] = {
    NoRowError: 404,
    GoneError: 410,
    CallError: 422,
    ValueError: 422,
    OSError: 500,
    Exception: 500,
}
#: Largest size in bytes of a video that is dropped on the page. It is written to a file.
UPLOAD_LIMIT = 2 * 2**30
#: Largest size in bytes of an image that is dropped on the page.
IMAGE_LIMIT = 64 * 2**20
#: Largest number of rows in one change of labels.
_MAX_ROWS = 100_000
# Files that the page loads. Scripts are loaded after the grid, and Plotly is not a template.
_SCRIPTS = ("plotly.js", "feature_map.js")
_MODULES = (
    "search_page.js",
    "search_query.js",
    "search_cards.js",
    "search_labels.js",
    "search_segments.js",
)
_STYLES = ("theme.css", "parts.css", "search_page.css")


def create_app(
    state: SearchState,
    token: str,
    port: int,
    upload_limit: int = UPLOAD_LIMIT,
    writable: bool = False,
) -> Guard:
    """Build the application behind its checks.

    Args:
        state: The index and its workers.
        token: Token of the link.
        port: Port of the server.
        upload_limit: Maximum size, in bytes, of a video dropped onto the page.
        writable: Whether programs may write labels.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> Any:
        threading.Thread(target=state.start, daemon=True).start()  # imports take some seconds
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
    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": api.ErrorAnswer} for status in (403, 413, *sorted({*_STATUS.values()}))
    }
    router = APIRouter(
        prefix=api.PREFIX,
        responses=problems,
        # Only for the description, because the guard has checked the token.
        dependencies=[Depends(HTTPBearer(auto_error=False, description="The token of the link."))],
    )
    _add_media(router, state)
    _add_search(router, state)
    _add_upload(router, state, upload_limit)
    _add_labels(router, state)
    _add_segments(router, state)
    app.include_router(router)
    return Guard(app, token, port, writable)


def _answer_errors(app: FastAPI) -> None:
    """Return one sentence in JSON for every error."""

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
            if message is None:  # a bug: its traceback is in the terminal
                kind = type(error).__name__
                message = f"an error of the program, see the terminal: {kind}: {error}"
            text = message.encode("utf-8", "replace").decode("utf-8")
            return JSONResponse({"error": text}, status_code=status)


# -- the page ------------------------------------------------------------------------------


def _add_page(app: FastAPI, state: SearchState, token: str, port: int, limit: int) -> None:
    #: Part of the addresses of pictures, because another server on this port shows other videos.
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
        # Plotly writes style rules, and WebGL maps compile the code that draws them, so two
        # "unsafe-" sources are needed. A script runs only with the nonce of this response.
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


def _content(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of an address that serves files of these content types."""
    schema = {"type": "string", "format": "binary"}
    return {200: {"content": {kind: {"schema": schema} for kind in kinds}}}


def _add_media(router: APIRouter, state: SearchState) -> None:
    """Add frames, clips and files. The content of a row does not change while the server runs."""
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
        """Return the file itself, or an mp4 for a row of a table. Range requests are answered."""
        file = state.file(row)
        if is_elsewhere(file):
            return Response(state.picture(row, whole), media_type="video/mp4", headers=kept)
        kind = PLAYABLE.get(os.path.splitext(file)[1].lower(), "application/octet-stream")
        return FileResponse(file, media_type=kind)  # answers requests for ranges, too


# -- search --------------------------------------------------------------------------------


def _add_search(router: APIRouter, state: SearchState) -> None:
    router.get("/videos")(state.describe)
    router.get("/map")(state.map)

    @router.post("/missing")
    def missing(
        rows: Annotated[list[int], Body(embed=True, max_length=api.MAX_RESULTS)],
    ) -> api.RowsAnswer:
        """Return the rows whose files no longer exist."""
        return api.RowsAnswer(rows=state.missing(rows))

    @router.post("/rows")
    def rows(filters: api.FilterRequest) -> api.RowsAnswer:
        """Return the rows that pass filters."""
        return api.RowsAnswer(rows=np.flatnonzero(state.matching(filters)).tolist())

    @router.post("/search")
    def search(search: api.SearchRequest) -> api.ResultsAnswer:
        """Return the videos or moments that are most similar to examples, a text or a label."""
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
    too_long: dict[int | str, dict[str, Any]] = {413: {"model": api.ErrorAnswer}}
    body = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}

    @router.post("/upload", responses=too_long, openapi_extra={"requestBody": body})
    async def upload(
        request: Request, name: Annotated[str, Query(max_length=1000)]
    ) -> api.UploadAnswer:
        """Embed a video or an image for later searches. The body is the file itself."""
        kind = os.path.splitext(name)[1].lower()
        if kind not in VIDEO_EXTENSIONS + IMAGE_EXTENSIONS:
            known = " ".join(VIDEO_EXTENSIONS + IMAGE_EXTENSIONS)
            raise ValueError(
                f"{name!r} does not have the name of a video or an image. Known endings: {known}"
            )
        what: Literal["image", "video"] = "image" if kind in IMAGE_EXTENSIONS else "video"
        limit = min(IMAGE_LIMIT, video_limit) if what == "image" else video_limit
        too_large = HTTPException(
            413, f"the {what} is larger than {limit / 2**20:.0f} MB: cut a part out of it, or "
            "query it by sce-video search FILE --index INDEX",
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
    """Add the requests that write files, which programs may send with --writable."""

    @router.post("/label")
    def label(
        rows: Annotated[list[int], Body(max_length=_MAX_ROWS)],
        label: Annotated[str | None, Body(max_length=1000)] = None,  # for none
    ) -> api.LabelledAnswer:
        """Give videos a label, or none (null)."""
        return state.set_label(rows, label)

    router.post("/undo")(state.undo_label)
    router.post("/split")(state.write_split)


# -- segments ------------------------------------------------------------------------------


def _add_segments(router: APIRouter, state: SearchState) -> None:
    """Add requests for labelled segments of a video, and for clips of it."""

    @router.get("/segments/{row}")
    def segments(row: int) -> api.SegmentsAnswer:
        """Return the labelled segments of a video."""
        return state.describe_segments(row)

    @router.post("/segments/{row}")
    def add_segment(
        row: int,
        start: Annotated[float, Body()],
        end: Annotated[float, Body()],
        label: Annotated[str, Body(max_length=1000)],
    ) -> api.SegmentsAnswer:
        """Label the segment of a video from start to end, in seconds.

        Segments of a video may overlap. The status is 422 if the segment has no length or ends
        after the video.
        """
        return state.add_segment(row, start, end, label)

    @router.post("/segments/{row}/remove")
    def remove_segment(
        row: int, number: Annotated[int, Body()], label: Annotated[str, Body(max_length=1000)]
    ) -> api.SegmentsAnswer:
        """Remove a segment by its number in the list of the video.

        The status is 422 if the segment has another label, because the list has changed meanwhile.
        """
        return state.remove_segment(row, number, label)

    @router.post("/segments/{row}/undo")
    def undo_segment(row: int) -> api.SegmentsAnswer:
        """Undo the last change of the segments of any video."""
        return state.undo_segment(row)

    @router.get("/cut/{row}", response_class=Response, responses=_content("video/mp4"))
    def cut(row: int, start: float, end: float) -> Response:
        """Return a frame-accurate clip of a video as mp4, with its audio.

        Start and end are in seconds, at most ten minutes apart. The clip is encoded again.
        """
        content = state.cut(row, start, end)
        name = quote(os.fsencode(clip_name(row, state.index.path(row), start, end)))
        saved = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return Response(content, media_type="video/mp4", headers=saved)


HOST = "127.0.0.1"
_REDIRECT = (
    '<!DOCTYPE html><meta charset="utf-8"><title>sce-video search</title>'
    '<meta http-equiv="refresh" content="0; url={0}"><a href="{0}">Open the search page</a>\n'
)


def serve(options: SearchOptions) -> None:
    """Serve the search page of an index until Ctrl-C or SIGTERM, and print its link.

    Raises:
        FileNotFoundError: If there is no index, or no checkpoint at the given path.
        ValueError: If the index is empty or a table of videos, the checkpoint does not belong to
            the index, the list of labels cannot be read, or the port is taken.
    """
    folder = options.folder
    if is_table_folder(folder):
        raise ValueError(
            f"{folder} is a table of videos, but the page needs the folder of an index, where it "
            "keeps labels. Run sce-video index TABLE --out INDEX first"
        )
    index = read_index(folder)
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} contains no video that could be decoded")
    network = IndexNetwork(options.checkpoint, options.config, options.device)
    if network.checkpoint is not None:
        network = replace(network, checkpoint=checkpoint_of_index(index, network.checkpoint))
    label_list = LabelList(label_file(folder, options.labels))
    state = SearchState(index, network, label_list, columns_of_index(index, options.columns))
    # An interrupt here comes before the server has its own handlers.
    with ExitStack() as at_end, _listen(options.port) as listening, suppress(KeyboardInterrupt):
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(24)
        link = f"http://{HOST}:{port}/?token={token}"
        print(printable(f"{len(index)} videos of {index.root}; labels: {label_list.file}"))
        if problem := state.network_problem():
            print(printable(f"note: {problem}"))
        print(f"open {link}\nPress Ctrl-C to stop", flush=True)
        # A text browser would take over the terminal.
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
    """Open a link in the user's browser through a file, which exists while the block runs.

    Every user of the machine can see the arguments of a process, and the link contains the token.
    The browser therefore gets the name of a file that redirects to the link, and that only this
    user can read.
    """
    with ExitStack() as at_end:
        with suppress(OSError):  # the folder for temporary files is full: the link is printed
            file = at_end.enter_context(
                tempfile.NamedTemporaryFile("w", prefix="sce_video_link_", suffix=".html")
            )
            file.write(_REDIRECT.format(escape(link)))
            file.flush()
            webbrowser.open(Path(file.name).as_uri())
        yield


class _Server(uvicorn.Server):
    """Server that ends silently at SIGINT and SIGTERM, even while a browser is reading."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Its parent repeats the signal afterwards and would report truncated answers.
        self.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def _listen(port: int) -> socket.socket:
    """Return a socket on the loopback address."""
    try:
        return socket.create_server((HOST, port))  # the link is printed before the server runs
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ValueError(
            f"port {port} of {HOST} cannot be used ({reason}). Give another --port, or omit it"
        ) from error
