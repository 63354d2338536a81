"""Arguments that classes adopt from a checkpoint, and the values that they accept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import pytest

from sce_video.utils.stored_arguments import (
    Channels,
    Entries,
    PixelRange,
    Seconds,
    Stored,
    Switch,
    Variant,
    stored_arguments,
)

WIDTHS = {3, 64}


class Network:
    def __init__(
        self,
        channels: Channels,
        layers: Annotated[int, Stored(4, least=0)] = 2,
        grid: Annotated[Sequence[int], Stored(64, values=3)] = (1, 2, 3),
        stem: Variant = "small",
        bias: Switch | None = None,
        seconds: Seconds = 1.0,
        size: PixelRange = 224,
        frozen: int = -1,
    ) -> None:
        pass


class Child(Network):
    def __init__(self, queue: Entries = 0, **settings) -> None:
        super().__init__(**settings)


class Other(Network):
    def __init__(self, plain: int = 0) -> None:
        super().__init__(plain)


def test_declared_arguments():
    names = ["channels", "layers", "grid", "stem", "bias", "seconds", "size"]
    assert [*stored_arguments(Network)] == names
    assert {*stored_arguments(Child)} == {"queue", *names}
    assert stored_arguments(Other) == {} == stored_arguments(None) == stored_arguments(len)
    assert stored_arguments(Network)["layers"].default == 2


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("channels", [3, 64], [0, -3, 4, 2048, True, 64.0, "64", None, [64]]),
        ("layers", [0, 4], [5, -1, 10**400]),
        ("grid", [[1, 64], (1, 2, 3), 5], [[], [1, 2, 3, 4], [1, 65], [[1]], [1, "2"]]),
        ("stem", ["small", "_a1"], ["a.b", "__import__('os')", "a" * 33, "", 3]),
        ("bias", [None, True, False], [0, 1, "True"]),
        ("seconds", [0.5, 86400, 2], [0, -1.0, float("nan"), float("inf"), True]),
        ("size", [224, [224, 320]], [[1, 2, 3], 8193]),
    ],
)
def test_values(name, accepted, refused):
    argument = stored_arguments(Network)[name]
    assert [value for value in accepted if not argument.accepts(value, WIDTHS)] == []
    assert [value for value in refused if argument.accepts(value, WIDTHS)] == []
