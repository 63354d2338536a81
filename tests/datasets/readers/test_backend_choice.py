"""The choice of backend="auto"."""

from __future__ import annotations

import pytest
from helpers.readers import SlowCopy, Wrong

from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers import backend_choice as choice


@pytest.fixture
def clock(monkeypatch):
    """Sets the CPU time of each measured reader."""
    choice.forget_choices()
    seconds = {"AvReader": 1.0, "SlowCopy": 0.5, "Wrong": 0.1}

    def timed(opener, path, indices, options):
        with opener(path, **options) as reader:
            return reader.read(indices), seconds[opener.__name__]

    monkeypatch.setattr(choice, "_timed", timed)
    yield seconds
    choice.forget_choices()


def test_the_fastest_with_equal_frames_is_chosen_once_per_kind(plain, clock):
    candidates = {"wrong": Wrong, "copy": SlowCopy}
    with AvReader(plain) as reader:
        assert choice.choose_backend(reader, candidates, 1, None) == "copy"
        clock["AvReader"] = 0.01
        assert choice.choose_backend(reader, candidates, 1, None) == "copy", "remembered"
        assert choice.choose_backend(reader, {"wrong": Wrong}, 1, None) == "av"
        assert choice.remembered_choice(reader) == "copy"
        choice.forget_choices()
        assert choice.choose_backend(reader, candidates, 1, None) == "av"
        choice.forget_choices()
        clock.update(AvReader=1.0, SlowCopy=0.95)  # less than a tenth faster
        assert choice.choose_backend(reader, candidates, 1, None) == "av"


def test_nothing_is_measured_shortly_before_the_deadline(plain, clock):
    with AvReader(plain) as reader:
        assert choice.choose_backend(reader, {"copy": SlowCopy}, 1, choice.time.monotonic()) == "av"
        assert choice.choose_backend(reader, {"copy": SlowCopy}, 1, None) == "copy"
