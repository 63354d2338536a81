"""A small index with awkward names, and the search page on it."""

from __future__ import annotations

import shutil
import signal
import threading
from types import SimpleNamespace

import pytest
from helpers.search_page import NAMES, PORT, TOKEN
from helpers.small_index import OPTIONS

from sce_video.find.index import build_index, read_index


@pytest.fixture(scope="module")
def searched(tmp_path_factory, model, originals):
    """Folder of videos, index and workers, shared by all tests."""
    from sce_video.find.index_network import IndexNetwork
    from sce_video.find.label_list import LabelList
    from sce_video.find.search_state import SearchState

    folder = tmp_path_factory.mktemp("searched")
    for name, source in NAMES.items():
        (folder / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(originals / source, folder / "videos" / name)
    (folder / "videos" / "broken.mp4").write_bytes(b"nothing of a video")
    build_index(model, folder / "videos", folder / "index", OPTIONS)
    labels = LabelList(folder / "none.txt")
    state = SearchState(read_index(folder / "index"), IndexNetwork(device="cpu"), labels)
    state.start()
    yield SimpleNamespace(folder=folder, state=state)
    state.close()


@pytest.fixture
def state(searched, tmp_path):
    """The state of the page, with lists of labels and segments of its own."""
    from sce_video.find.label_list import LabelList, SegmentList

    searched.state.segments = SegmentList(tmp_path / "labels_segments.csv")
    searched.state.labels = LabelList(tmp_path / "labels.txt")
    return searched.state


@pytest.fixture
def client(state):
    """A browser that has opened the link."""
    import warnings

    with warnings.catch_warnings():  # starlette advises httpx2
        warnings.simplefilter("ignore")
        from starlette.testclient import TestClient

    from sce_video.find.search_page import create_app

    origin = f"http://127.0.0.1:{PORT}"
    found = TestClient(
        create_app(state, TOKEN, PORT, upload_limit=200_000),
        base_url=origin,
        headers={"origin": origin},
        raise_server_exceptions=False,
    )
    assert found.get("/", params={"token": TOKEN}).status_code == 200
    return found


@pytest.fixture
def served(state):
    """Link and origin of a running server."""
    from sce_video.find.search_connections import server_config
    from sce_video.find.search_page import _listen, _Server, create_app

    with _listen(0) as listening:
        port = listening.getsockname()[1]
        config = server_config(create_app(state, TOKEN, port, upload_limit=200_000))
        config.lifespan = "off"
        server = _Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        origin = f"http://127.0.0.1:{port}"
        yield SimpleNamespace(origin=origin, link=f"{origin}/?token={TOKEN}")
        server.handle_exit(signal.SIGINT, None)
        thread.join()
