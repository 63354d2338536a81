"""The text of a config is mmengine's, and formatted once for each content."""

from __future__ import annotations

import copy
import pickle

import mmengine.config.config as mmengine_config
import pytest
from mmengine.config import Config

from sce_video.engine.config.load import FormattedOnce


@pytest.fixture
def formatted(monkeypatch):
    """Counts how often yapf runs."""
    calls = []
    original = mmengine_config.FormatCode

    def count(*arguments, **options):
        calls.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(mmengine_config, "FormatCode", count)
    return calls


def test_the_text_is_that_of_mmengine_and_formatted_once(formatted):
    plain = Config(dict(model=dict(type="SCE", depth=[1, 2]), seed=3))
    cfg = FormattedOnce.of(plain)
    wanted = plain.pretty_text
    del formatted[:]
    assert cfg.pretty_text == wanted and cfg.dump() == wanted
    assert copy.deepcopy(cfg).pretty_text == wanted
    assert len(formatted) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda cfg: cfg.model.depth.append(3),
        lambda cfg: cfg.merge_from_dict({"model.type": "BYOL"}),
        lambda cfg: setattr(cfg, "seed", 4),
        lambda cfg: cfg.pop("seed"),
    ],
)
def test_a_change_is_formatted(change):
    cfg = FormattedOnce.of(Config(dict(model=dict(type="SCE", depth=[1, 2]), seed=3)))
    before = cfg.pretty_text
    change(cfg)
    assert cfg.pretty_text != before
    assert cfg.pretty_text == Config(cfg.to_dict()).pretty_text


def test_copies_are_independent_and_it_can_be_pickled():
    cfg = FormattedOnce.of(Config(dict(a=1)))
    assert cfg.pretty_text == "a = 1\n"
    other = copy.deepcopy(cfg)
    other.a = 2
    assert (cfg.pretty_text, other.pretty_text) == ("a = 1\n", "a = 2\n")
    back = pickle.loads(pickle.dumps(cfg))
    assert back.pretty_text == "a = 1\n"
