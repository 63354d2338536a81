"""Generated images with the spectrum of photographs."""

from __future__ import annotations

import numpy as np


def photograph_like(height: int, width: int, seed: int = 0) -> np.ndarray:
    """(H, W, 3) uint8: noise whose amplitude falls as 1/frequency, as that of photographs does."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    spectra = [np.fft.rfft2(rng.standard_normal((height, width))) / frequency for _ in range(3)]
    planes = [np.fft.irfft2(spectrum, s=(height, width)) for spectrum in spectra]
    image = np.stack([120 + 45 * plane / plane.std() for plane in planes], axis=-1)
    return np.clip(image, 0, 255).astype(np.uint8)
