"""Fixtures shared by all tests."""

from __future__ import annotations

import copy
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from logging import FileHandler
from pathlib import Path
from typing import Any

import mmengine.config  # before the test processes start, see below
import pytest

# The first import of mmengine's config in a new environment makes yapf write a cache of its
# grammar, and a second process that reads it at that moment fails.
REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).resolve().parent))  # tests/helpers/videos.py
# Two test processes share the cores, and each starts others: one thread for each is fastest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from helpers.object_store import Bucket, forget_sessions  # noqa: E402  (below the folder of tests)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the end-to-end tests, so that no process waits at the end for the longest one.

    In a run of one process those of Ray come last: what is forked after it has run has threads of
    it, and crashes with Python 3.13. Of two processes one would then go on with tests of the other.
    """
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    items.sort(
        key=lambda item: (
            "e2e" not in item.path.parts,
            alone and item.path.name == "test_ray.py",
        )
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the server that forks processes early in a run of many tests, which will need it."""
    if len(session.items) > 1000 and not session.config.option.collectonly:
        from helpers.run_tool import start_server

        start_server()


@pytest.fixture(autouse=True)
def _no_closed_log_file() -> None:
    """mmengine writes how a model was initialised into the last runner's log, even a closed one."""
    if "mmengine.logging" not in sys.modules:  # its import takes torch's time
        return
    for logger in sys.modules["mmengine.logging"].MMLogger._instance_dict.values():
        closed = [h for h in logger.handlers if isinstance(h, FileHandler) and h.stream is None]
        for handler in closed:
            logger.removeHandler(handler)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in this process: nothing limits their time, and a crash would end the tests."""
    from sce_video.jobs import Workers
    from sce_video.jobs.process_pool import run_here

    monkeypatch.setattr(Workers, "run", lambda workers, job, items: run_here(job, items))


@pytest.fixture(scope="session")
def repo() -> Path:
    """The repository's root."""
    return REPO


@pytest.fixture(scope="session", autouse=True)
def _recipes_are_read_once() -> Iterator[None]:
    """Every test gets a copy of a recipe of ``configs``; mmengine writes 12 files to read one.

    Configs that tests write are read each time, as are those that depend on the environment.
    """
    from sce_video.engine.config import load as config

    folder, read, known = REPO / "configs", config.read_config, {}

    def read_once(path: str | Path, sources: dict | None = None) -> mmengine.config.Config:
        if sources is not None or folder not in Path(path).absolute().parents:
            return read(path, sources)
        if str(path) not in known:
            cfg = read(path)
            if cfg.env_variables:
                return cfg
            known[str(path)] = cfg
        return copy.deepcopy(known[str(path)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "read_config", read_once)
        # mmengine formats the config five times per run, which takes longer than small trainings;
        # its fork has no such function.
        formatter = "mmengine.config.config.FormatCode"
        patch.setattr(formatter, lambda text, **options: (text, False), raising=False)
        yield


@pytest.fixture(scope="session")
def shared_videos() -> Path:
    """Folder with ``formats`` and ``weizmann4`` (real files, not part of the project)."""
    root = Path(os.environ.get("SCE_VIDEO_TEST_VIDEOS", REPO.parent / "shared" / "videos"))
    if not (root / "formats").is_dir():
        pytest.skip(f"no real test videos at {root} (set SCE_VIDEO_TEST_VIDEOS)")
    return root


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of an S3 server in this process, on the loopback interface."""
    server = pytest.importorskip("moto.server", reason="no moto[server]: pip install moto[server]")
    pytest.importorskip("s3fs", reason="no s3fs: pip install s3fs")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket, to which s3:// leads; downloads are cached below ``tmp_path``."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path / "cache"))
    forget_sessions()
    client = boto3.client("s3")
    name = f"my-bucket-{uuid.uuid4().hex}"  # a word of messages about missing buckets
    client.create_bucket(Bucket=name)
    return Bucket(name, s3_server, client)


@pytest.fixture(scope="session")
def split_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of ``helpers.recognition.make_splits``; not to be changed."""
    from helpers.recognition import make_splits

    return make_splits(tmp_path_factory.mktemp("split_videos"))


@pytest.fixture(scope="session")
def folder_classifier(split_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint finetuned once per session on the two class folders of ``split_videos``."""
    from helpers.recognition import train_on_folders

    return train_on_folders(split_videos, tmp_path_factory.mktemp("folder_classifier"))


@pytest.fixture(scope="session")
def ava_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data set of ``helpers.ava_small.make_root``; not to be changed."""
    from helpers.ava_small import make_root

    return make_root(tmp_path_factory.mktemp("ava"))


@pytest.fixture(scope="session")
def ava_checkpoint(ava_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Detector trained once per session on ``ava_root`` (several seconds)."""
    from helpers.ava_small import train_small

    return train_small(ava_root, tmp_path_factory.mktemp("ava_trained"))


@pytest.fixture(scope="session")
def numbered_video(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Factory of videos with numbered frames, each encoded once per session; not to be changed.

    ``numbered_video(name, count, **options)`` returns the path; the options are those of
    ``helpers.videos.write_video``. Skips the test if FFmpeg lacks the encoder.
    """
    import av
    from helpers.videos import numbered_frames, write_video

    folder = tmp_path_factory.mktemp("numbered")
    made: dict[str, str] = {}

    def make(name: str, count: int = 50, **options: Any) -> str:
        key = repr((name, count, sorted(options.items())))
        if key not in made:
            path = folder / str(len(made)) / name
            try:
                made[key] = str(write_video(path, numbered_frames(count), **options))
            except (av.FFmpegError, ValueError) as error:
                pytest.skip(f"cannot be encoded here: {error}")
        return made[key]

    return make


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A tiny checkpoint; not to be changed."""
    from helpers.tiny_encoder import save_tiny

    return save_tiny(tmp_path_factory.mktemp("model") / "tiny.pth")


@pytest.fixture(scope="session")
def model(checkpoint):
    """The network of the tiny checkpoint."""
    from sce_video.inference.model import load_model

    return load_model(checkpoint, device="cpu")


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """The videos ``NAMES`` and ``more.mp4``; not to be changed."""
    from helpers.small_index import NAMES
    from helpers.tiny_encoder import moving_frames, write_lossless

    folder = tmp_path_factory.mktemp("originals")
    for i, name in enumerate([*NAMES, "more.mp4"]):
        write_lossless(folder / name, moving_frames(20, seed=i))
    return folder


@pytest.fixture
def root(tmp_path, originals):
    """Copies of the five videos, a broken video and a text file."""
    from helpers.small_index import NAMES

    for name in NAMES:
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(originals / name, tmp_path / "videos" / name)
    (tmp_path / "videos" / "broken.mp4").write_bytes(b"nothing of a video")
    (tmp_path / "videos" / "notes.txt").write_text("no video")
    return tmp_path / "videos"


@pytest.fixture
def opened(monkeypatch):
    """Names of the files that are opened from now on."""
    import sce_video.datasets.transforms.decoding as decoding

    names = []
    real = decoding.open_video

    def counting(path, *args, **kwargs):
        names.append(os.path.basename(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(decoding, "open_video", counting)
    return names
