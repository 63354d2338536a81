"""Small images and clips, and calls in other processes: crashes, hangs, errors, the end."""

import io
import os
import signal
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool

import av
import pytest
from helpers.processes import wait_until
from helpers.small_index import HEADER
from helpers.tiny_encoder import moving_frames, write_lossless
from pebble.pool.process import PoolManager

from sce_video.find import search_media
from sce_video.find.index_network import IndexNetwork
from sce_video.find.search_media import (
    CallError,
    MediaWorkers,
    RecentItems,
    animation,
    middle_frame,
)
from sce_video.find.store import VideoIndex
from sce_video.utils.own_parts import OwnModules


@pytest.fixture
def workers():
    made = MediaWorkers(1)
    yield made
    made.close()


def test_a_crash_or_a_hang_costs_one_call(workers):
    first = workers.call(os.getpid, timeout=60)
    assert first != os.getpid()
    with pytest.raises(CallError, match="crashed the decoder"):
        workers.call(signal.raise_signal, signal.SIGKILL, timeout=60)
    with pytest.raises(CallError, match="longer than 0.5 s"):
        workers.call(time.sleep, 60, timeout=0.5)
    assert workers.call(os.getpid, timeout=60) not in (first, os.getpid())


def test_errors_are_sentences(workers):
    with pytest.raises(CallError, match="there is no file or folder /no"):
        workers.call(os.stat, "/no", timeout=60)
    with pytest.raises(CallError, match="TypeError: "):
        workers.call(len, 3, timeout=60)


def test_a_worker_that_was_killed_between_two_calls_is_replaced(workers):
    os.kill(workers.call(os.getpid, timeout=60), signal.SIGKILL)
    assert workers.call(abs, -2, timeout=60) == 2


def test_a_call_that_was_being_scheduled_when_the_pool_ended_is_made_again(workers, monkeypatch):
    """Pebble fails the calls that it knows; one that it registers afterwards has no outcome."""
    handle, lost = PoolManager.handle_broken_pool, []

    def schedule_late(manager, task):
        monkeypatch.undo()
        lost.append(task.id)
        handle(manager, BrokenProcessPool("a worker died"))
        manager.schedule(task)

    assert workers.call(abs, -1, timeout=60) == 1
    monkeypatch.setattr(PoolManager, "schedule", schedule_late)
    assert workers.call(abs, -2, timeout=60) == 2 and lost


def test_the_end_does_not_wait_for_a_call(workers, monkeypatch):
    # Pebble fails current calls only if its thread for results is the first to notice the end.
    monkeypatch.setattr(PoolManager, "handle_broken_pool", lambda *_: None)
    problems = []

    def call():
        try:
            workers.call(time.sleep, 3600, timeout=7200)
        except CallError as error:
            problems.append(str(error))

    assert workers.call(abs, -1, timeout=60) == 1
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    tasks = workers._pool._pool_manager.task_manager.tasks
    wait_until(lambda: any(task.started for task in tuple(tasks.values())))
    workers.close()
    thread.join(60)
    assert problems == ["the page is being closed"]


def test_after_the_end(workers):
    workers.open()
    assert workers.call(abs, -1, timeout=60) == 1
    workers.close()
    with pytest.raises(CallError, match="closed"):
        workers.call(abs, 1, timeout=1)
    workers.close()


def test_the_cache_keeps_the_most_recently_used():
    cache, made = RecentItems(25, len), []

    def get(key):
        return cache.get_or_make(key, lambda: made.append(key) or bytes([key]) * 10)

    assert [get(key)[0] for key in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2], "3 was made when 2 was the least recently used"


def test_a_video_of_an_instant_has_an_animation(tmp_path):
    for count, expected in ((1, 4), (2, 4), (50, 16)):
        video = write_lossless(tmp_path / f"{count}.mp4", moving_frames(count, 24, 32))
        with av.open(io.BytesIO(animation(str(video)))) as container:
            assert sum(1 for _ in container.decode(video=0)) == expected
        assert middle_frame(str(video))[:2] == b"\xff\xd8"


def test_a_worker_imports_the_users_own_modules(tmp_path, monkeypatch):
    """The backbone of an index may be one of them."""
    (tmp_path / "own_backbone_of_a_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(search_media, "model_of_index", lambda *_: "own_backbone_of_a_test")
    network = IndexNetwork(modules=OwnModules(("own_backbone_of_a_test",), ()))
    assert search_media._model(VideoIndex("index", HEADER), network) in sys.modules
