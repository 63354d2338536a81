"""Slow reference of the augmentation: one sample, one frame, one pixel at a time, in numpy.

Written from the definitions (torchvision's documentation and the colorsys module), shares no code
with the package. Frames are float64 (H, W, 3) in 0..1.
"""

from __future__ import annotations

import colorsys

import numpy as np
import torch
from torch import Tensor

LUMA = np.array([0.2989, 0.587, 0.114])


def grey_of(frame: np.ndarray) -> np.ndarray:
    return (frame * LUMA).sum(axis=-1)


def blend(frame: np.ndarray, other: np.ndarray | float, factor: float) -> np.ndarray:
    return np.clip(factor * frame + (1.0 - factor) * other, 0.0, 1.0)


def brightness(frame: np.ndarray, factor: float) -> np.ndarray:
    return blend(frame, 0.0, factor)


def contrast(frame: np.ndarray, factor: float) -> np.ndarray:
    return blend(frame, float(grey_of(frame).mean()), factor)


def saturation(frame: np.ndarray, factor: float) -> np.ndarray:
    return blend(frame, grey_of(frame)[..., None], factor)


def hue(frame: np.ndarray, shift: float) -> np.ndarray:
    out = np.empty_like(frame)
    for y, row in enumerate(frame):
        for x, pixel in enumerate(row):
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            out[y, x] = colorsys.hsv_to_rgb((h + shift) % 1.0, s, v)
    return out


def grey(frame: np.ndarray) -> np.ndarray:
    return np.repeat(grey_of(frame)[..., None], 3, axis=-1)


def blur(frame: np.ndarray, sigma: float, kernel_size: int = 23) -> np.ndarray:
    """Direct 2-D convolution with the outer product kernel on the mirrored frame."""
    radius_y = min(kernel_size // 2, frame.shape[0] - 1)
    radius_x = min(kernel_size // 2, frame.shape[1] - 1)
    dy = np.arange(-radius_y, radius_y + 1)[:, None]
    dx = np.arange(-radius_x, radius_x + 1)[None]
    kernel = np.exp(-(dx**2 + dy**2) / (2.0 * sigma**2))
    kernel /= kernel.sum()
    padded = np.pad(frame, ((radius_y,) * 2, (radius_x,) * 2, (0, 0)), mode="reflect")
    out = np.zeros_like(frame)
    for y in range(frame.shape[0]):
        for x in range(frame.shape[1]):
            patch = padded[y : y + kernel.shape[0], x : x + kernel.shape[1]]
            out[y, x] = (patch * kernel[..., None]).sum(axis=(0, 1))
    return out


def solarise(frame: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    return np.where(frame >= threshold, 1.0 - frame, frame)


def flip(frame: np.ndarray) -> np.ndarray:
    return frame[:, ::-1]


def view(clip: np.ndarray, parameters, i: int) -> np.ndarray:
    """Sample ``i`` of drawn parameters on one uint8 clip (T, H, W, 3): float (3, T, H, W)."""
    frames = []
    for raw in clip:
        frame = raw.astype(np.float64) / 255.0
        if parameters.jitter[i]:
            factors = [float(f) for f in parameters.factors[i]]
            for part in parameters.order[i]:
                frame = (brightness, contrast, saturation, hue)[part](frame, factors[part])
        if parameters.grey[i]:
            frame = grey(frame)
        if parameters.blur[i]:
            frame = blur(frame, float(parameters.sigma[i]))
        if parameters.solarise[i]:
            frame = solarise(frame)
        if parameters.flip[i]:
            frame = flip(frame)
        frames.append((frame - 0.45) / 0.225)
    return np.stack(frames).transpose(3, 0, 1, 2)


def clips(n: int, t: int = 2, h: int = 9, w: int = 11, seed: int = 0) -> Tensor:
    """Float (N, 3, T, H, W) from bytes, with grey, black, white and tied pixels among them."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (n, t, h, w, 3))
    frames[:, :, 0, 0] = 0
    frames[:, :, 0, 1] = 255
    frames[:, :, 0, 2] = 100
    frames[:, :, 1, :, 1] = frames[:, :, 1, :, 0]  # red == green
    frames[:, :, 2, :, 2] = frames[:, :, 2, :, 1]  # green == blue
    frames[:, :, 3, :, 2] = frames[:, :, 3, :, 0]  # blue == red
    return torch.from_numpy(frames).permute(0, 4, 1, 2, 3).contiguous().float() / 255.0


def per_frame(function, x: Tensor, values=None) -> Tensor:
    """The oracle ``function`` on every frame of ``x`` with its sample's value."""
    out = torch.empty_like(x)
    for i, sample in enumerate(x.permute(0, 2, 3, 4, 1).double().numpy()):
        arguments = [] if values is None else [float(values[i])]
        result = np.stack([function(frame, *arguments) for frame in sample])
        out[i] = torch.from_numpy(result.transpose(3, 0, 1, 2).copy())
    return out
