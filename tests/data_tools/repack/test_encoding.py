"""PSNR by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sce_video.data_tools.repack.encode import Psnr


def test_equal_frames_have_a_finite_psnr():
    frame = np.zeros((6, 4), np.uint8)
    measure = Psnr()
    measure.add(frame, frame)
    assert measure.luma == measure.all_planes == measure.worse == 100


def test_psnr_of_luma_and_planes_by_hand():
    measure = Psnr()
    one, other = np.zeros((6, 4), np.uint8), np.zeros((6, 4), np.uint8)
    other[:4] = 200  # 200**2 does not fit in a byte
    measure.add(one, other)
    assert measure.luma == pytest.approx(20 * np.log10(255 / 200))
    assert measure.all_planes == pytest.approx(10 * np.log10(255**2 / (200**2 * 16 / 24)))
    assert measure.worse == measure.luma
