"""Settings of outputs."""

from __future__ import annotations

import pytest

from sce_video.data_tools.repack import Settings


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        ((480, 854), {}, (256, 456)),
        ((854, 480), {}, (456, 256)),
        ((120, 160), {}, (120, 160)),
        ((120, 160), {"enlarge": True}, (256, 342)),
        ((480, 640), {"short_side": None}, (480, 640)),
        ((480, 853), {"short_side": None}, (480, 852)),
        ((255, 333), {}, (254, 332)),
        ((1, 1), {"short_side": None}, (2, 2)),
        ((1080, 1920), {"short_side": 112}, (112, 200)),
    ],
)
def test_sizes(size, options, expected):
    assert Settings(**options).target_size(*size) == expected
