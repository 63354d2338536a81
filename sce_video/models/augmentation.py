"""Colour and geometric augmentation of whole batches, with parameters drawn from seeds."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.utils.tensors import to_device

# Kernel size per axis in pixels. As in the authors' code, it does not depend on the frame size
# (juliendenize/eztorch, eztorch/configs/transform/contrastive).
BLUR_KERNEL = 23


def gaussian_kernel(sigma: Tensor, radius: int) -> Tensor:
    """Return the weights (N, 2 * radius + 1) for sigma (N,) in pixels. Each row sums to 1."""
    taps = torch.arange(-radius, radius + 1, device=sigma.device, dtype=sigma.dtype)
    weights = (taps / sigma[:, None]).square_().mul_(-0.5).exp_()
    return weights.div_(weights.sum(dim=1, keepdim=True))


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Blur every frame of (N, C, T, H, W) with its sample's sigma (N,) in pixels.

    The blur is computed along W and then along H. Reflect padding, which does not repeat the edge
    pixel, is limited to size - 1 pixels. If the kernel's radius is larger, the axis gets the
    largest possible kernel, with ``2 * size - 1`` taps. An axis with one pixel is not blurred.
    """
    N, C, T, H, W = x.shape
    # Treat every channel of every frame as a separate channel of one depthwise 2-D convolution.
    planes = x.reshape(1, N * C * T, H, W)
    for size, across in ((W, False), (H, True)):
        radius = min(BLUR_KERNEL // 2, size - 1)
        weights = gaussian_kernel(sigma, radius).repeat_interleave(C * T, dim=0)
        pad = (0, 0, radius, radius) if across else (radius, radius, 0, 0)
        kernel = weights[:, None, :, None] if across else weights[:, None, None, :]
        planes = F.conv2d(F.pad(planes, pad, mode="reflect"), kernel, groups=N * C * T)
    return planes.view(N, C, T, H, W)


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Return ``factor * x + (1 - factor) * other``, clamped to 0..1, with ``other`` broadcast."""
    factor = factor.view(-1, 1, 1, 1, 1)
    return (x * factor).add_((1.0 - factor) * other).clamp_(0.0, 1.0)


def rgb_to_grey(x: Tensor) -> Tensor:
    """Return the luma (N, 1, T, H, W) of (N, 3, T, H, W)."""
    return luma(*x.split(1, dim=1))


def luma(red: Tensor, green: Tensor, blue: Tensor) -> Tensor:
    """Return the luma of three channels with the same shape."""
    # Use the rounded Rec. 601 weights of torchvision's rgb_to_grayscale, whose sum is 0.9999.
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by ``shift`` (-0.5..0.5 of a full circle), and keep value and chroma.

    This converts RGB to HSV and back without computing the saturation. Let V be the largest
    channel, and let the chroma C be the largest channel minus the smallest. Let k be the hue in
    turns plus 5/6 for red, 3/6 for green and 1/6 for blue, modulo 1. A channel is then ``V - C *
    clamp(2 - 6 * |k - 1/3|, 0, 1)``.
    """
    rotated = RotatedHue.of(x.unbind(1), shift.view(-1, 1, 1, 1))
    out = torch.empty_like(x)
    for number, channel in enumerate(out.unbind(1)):
        rotated.channel(number, out=channel)
    return out


class RotatedHue(NamedTuple):
    """Colours as value, chroma and rotated hue, three tensors of one shape (:func:`adjust_hue`)."""

    value: Tensor  # largest of the three channels
    chroma: Tensor  # largest channel minus smallest channel
    hue: Tensor  # in turns, at least 0

    @classmethod
    def of(cls, planes: Sequence[Tensor], shift: Tensor) -> RotatedHue:
        """Convert red, green and blue, and add ``shift``, which is broadcast, to their hue."""
        red, green, blue = planes
        value = torch.maximum(torch.maximum(red, green), blue)
        chroma = value - torch.minimum(torch.minimum(red, green), blue)
        # Compute hue times chroma, in sixths of a turn, as if blue were the largest channel. Then
        # overwrite it where green or red is the largest one.
        hue = torch.add(red - green, chroma, alpha=4.0)
        hue = hue.lerp_(torch.add(blue - red, chroma, alpha=2.0), _mask(torch.eq, green, value))
        hue = hue.lerp_(green - blue, _mask(torch.eq, red, value))
        # Grey pixels have chroma 0, so their hue has no effect, but it must be finite.
        hue.div_(chroma.clamp(min=torch.finfo(chroma.dtype).tiny)).div_(6.0)
        # Adding 1 keeps the hue positive, so that its fractional part equals the modulo.
        return cls(value, chroma, hue.add_(shift + 1.0))

    def channel(self, number: int, out: Tensor | None = None) -> Tensor:
        """Return red (0), green (1) or blue (2)."""
        k = (self.hue + (5 - 2 * number) / 6.0).frac_()
        weight = k.sub_(1.0 / 3.0).abs_().mul_(-6.0).add_(2.0).clamp_(0.0, 1.0)
        return torch.addcmul(self.value, weight, self.chroma, value=-1.0, out=out)


def solarise(x: Tensor) -> Tensor:
    """Return 1 - x where x is at least 0.5, and x elsewhere."""
    return _mask(torch.ge, x, 0.5).sub_(x).abs_()


def _mask(compare: Callable[..., Tensor], x: Tensor, other: Tensor | float) -> Tensor:
    """Compare to 0.0 or 1.0, which on a CPU is three times as fast as ``torch.where``."""
    return compare(x, other, out=torch.empty_like(x))


JITTER_PARTS = ("brightness", "contrast", "saturation", "hue")

# First word of the entropy for all draws in this file. NumPy pads entropy with zeros. Without this
# word, the generator of view 0, default_rng([seed, 0]), would therefore equal default_rng(seed),
# which the dataset may use for the crop.
_STREAM = 0x56494557
_DRAWS = 14


@dataclass(frozen=True, kw_only=True)
class ViewAugmentation:
    """Distributions of a view's random parameters. By default, the view does not change.

    Attributes:
        brightness, contrast, saturation: Factors are drawn from U(max(0, 1 - value), 1 + value).
        hue: Shifts are drawn from U(-hue, hue), in full circles. The maximum is 0.5.
        jitter_prob: Probability that the four operations above are applied, in random order.
        grey_prob: Probability of the conversion to grey.
        blur_prob: Probability of a Gaussian blur with 23 taps.
        solarise_prob: Probability of solarisation, which inverts values of at least 0.5.
        flip_prob: Probability of a horizontal flip.
        blur_sigma: (low, high). Sigmas are drawn from U(low, high), in pixels. The kernel's radius
            limits them to 11.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    jitter_prob: float = 0.0
    grey_prob: float = 0.0
    blur_prob: float = 0.0
    solarise_prob: float = 0.0
    flip_prob: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("_prob") and not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be a probability from 0 to 1, got {value}")
            if name in JITTER_PARTS[:3] and not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be 0 or more, got {value}")
        if not 0.0 <= self.hue <= 0.5:
            raise ValueError(
                f"hue must be from 0 to 0.5 (half a circle in each direction), got {self.hue}. "
                "Use a smaller value or strength"
            )
        sigma = tuple(self.blur_sigma)
        if len(sigma) != 2 or not 0.0 < sigma[0] <= sigma[1] <= BLUR_KERNEL // 2:
            raise ValueError(
                f"blur_sigma must be (low, high) with 0 < low <= high <= {BLUR_KERNEL // 2}, "
                f"got {self.blur_sigma}"
            )
        object.__setattr__(self, "blur_sigma", sigma)


@dataclass(frozen=True)
class ViewParameters:
    """Random parameters of one view of N samples. All are drawn, even if they are not applied.

    Attributes:
        jitter, grey, blur, solarise, flip: bool (N,), whether the operation is applied.
        factors: float32 (N, 4), brightness, contrast, saturation and hue shift.
        order: int (N, 4), columns of ``factors`` in the order in which they are applied.
        sigma: float32 (N,), sigma of the blur in pixels.
    """

    jitter: np.ndarray
    grey: np.ndarray
    blur: np.ndarray
    solarise: np.ndarray
    flip: np.ndarray
    factors: np.ndarray
    order: np.ndarray
    sigma: np.ndarray

    def __len__(self) -> int:
        return len(self.jitter)

    def rows(self, rows: slice) -> ViewParameters:
        """Return the parameters of a range of samples."""
        return ViewParameters(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


# The paper's table tab:augmentations, but with colour jitter of strength 1, twice as strong.
_STRONG = ViewAugmentation(
    brightness=0.8,
    contrast=0.8,
    saturation=0.8,
    hue=0.2,
    jitter_prob=0.8,
    grey_prob=0.2,
    blur_prob=0.5,
    flip_prob=0.5,
)
_NAMED = {
    "weak": ViewAugmentation(flip_prob=0.5),
    "strong": _STRONG,
    "strong-alpha": replace(_STRONG, saturation=0.4, blur_prob=1.0),
    "strong-beta": replace(_STRONG, saturation=0.4, blur_prob=0.1, solarise_prob=0.2),
    "strong-gamma": replace(_STRONG, saturation=0.4, solarise_prob=0.2),
}


def named_view(name: str, strength: float = 0.5) -> ViewAugmentation:
    """Return one of the five augmentations in the paper's table ``tab:augmentations``.

    Args:
        name: "weak", "strong", "strong-alpha", "strong-beta" or "strong-gamma".
        strength: Strength s of the colour jitter. 0.5 gives the values of the table: brightness
            0.4, contrast 0.4, saturation 0.2 (0.4 for "strong") and hue 0.1. The best setting for
            videos uses 1.0, which doubles them. The maximum is 2.5, because hue is limited to 0.5.
            "weak" has no colour jitter.

    Raises:
        ValueError: If the name is unknown or the strength is negative.
    """
    if name not in _NAMED:
        raise ValueError(f"unknown view {name!r}{_suggest(name, _NAMED)}")
    if strength < 0:
        raise ValueError(f"strength must be 0 or more, got {strength}")
    full = _NAMED[name]
    return replace(full, **{part: getattr(full, part) * strength for part in JITTER_PARTS})


def build_view(config: ViewAugmentation | Mapping[str, Any]) -> ViewAugmentation:
    """Build a :class:`ViewAugmentation` from a config.

    Args:
        config: ``dict(name=..., strength=...)`` for a named augmentation, or a dict of attributes
            of :class:`ViewAugmentation`. Attributes override the values of the named augmentation.

    Raises:
        ValueError: If a key or a value is not valid.
    """
    if isinstance(config, ViewAugmentation):
        return config
    if not isinstance(config, Mapping):
        raise ValueError(f"a view must be a dict such as dict(name='strong'), got {config!r}")
    known = [f.name for f in fields(ViewAugmentation)]
    values = dict(config)
    for key in values:
        if key not in (*known, "name", "strength"):
            raise ValueError(f"a view has no key {key!r}{_suggest(key, known)}")
    named = {key: values.pop(key) for key in ("name", "strength") if key in values}
    if "strength" in named and "name" not in named:
        raise ValueError(f"strength={named['strength']} needs the name of a view. Add name=...")
    return replace(named_view(**named) if named else ViewAugmentation(), **values)


def _suggest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    hint = f": did you mean {near[0]!r}?" if near else ";"
    return f"{hint} Known: {', '.join(known)}"


def draw_parameters(
    augmentation: ViewAugmentation, seeds: Iterable[int], view: int
) -> ViewParameters:
    """Draw the parameters of one view for samples with these seeds.

    For every sample, 14 uniform numbers are drawn in the same order, whatever the distributions: 5
    decisions, 4 factors, sigma, and 4 keys. The ranking of the keys is the order of the colour
    jitter, so all 24 orders are equally likely.

    Args:
        augmentation: Distributions of the view.
        seeds: One seed per sample.
        view: Number of the view, counted from 0.
    """
    entropy = [[_STREAM, view, int(seed) % 2**64] for seed in seeds]
    u = np.array([np.random.default_rng(words).random(_DRAWS) for words in entropy])
    u = u.reshape(-1, _DRAWS)
    a = augmentation
    spread = np.array([a.brightness, a.contrast, a.saturation])
    low = np.append(np.maximum(0.0, 1.0 - spread), -a.hue)
    high = np.append(1.0 + spread, a.hue)
    sigma_low, sigma_high = a.blur_sigma
    return ViewParameters(
        jitter=u[:, 0] < a.jitter_prob,
        grey=u[:, 1] < a.grey_prob,
        blur=u[:, 2] < a.blur_prob,
        solarise=u[:, 3] < a.solarise_prob,
        flip=u[:, 4] < a.flip_prob,
        factors=(low + u[:, 5:9] * (high - low)).astype(np.float32),
        order=np.argsort(u[:, 10:14], axis=1),
        sigma=(sigma_low + u[:, 9] * (sigma_high - sigma_low)).astype(np.float32),
    )


# Each operation receives samples and their rows (N, 5) of factors and sigma.
_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    # The first three operations blend with black, with the mean luma of each frame, and with the
    # luma. A factor of 1 leaves the input unchanged.
    "brightness": lambda x, v: (x * v[:, 0].view(-1, 1, 1, 1, 1)).clamp_(0.0, 1.0),
    "contrast": lambda x, v: _blend(x, rgb_to_grey(x).mean((-2, -1), keepdim=True), v[:, 1]),
    "saturation": lambda x, v: _blend(x, rgb_to_grey(x), v[:, 2]),
    "hue": lambda x, v: adjust_hue(x, v[:, 3]),
    "blur": lambda x, v: gaussian_blur(x, v[:, 4]),
    "grey": lambda x, _: rgb_to_grey(x).expand_as(x).contiguous(),
    "solarise": lambda x, _: solarise(x),
    "flip": lambda x, _: x.flip(-1),
}
_NEUTRAL = np.array([1.0, 1.0, 1.0, 0.0], dtype=np.float32)


def planned_operations(parameters: ViewParameters) -> list[tuple[str, np.ndarray]]:
    """Return the operations in order, each with the indices (int64) of the samples it applies to.

    The colour jitter consists of four rounds. Round r applies the r-th operation in each sample's
    order, so a round has at most four batched operations for any batch size. Grey, blur, solarise
    and flip follow in the order of the authors' code (juliendenize/eztorch,
    eztorch/configs/transform/contrastive). Operations without effect are left out.
    """
    p = parameters
    steps = []
    for round_ in range(len(JITTER_PARTS)):
        for part, name in enumerate(JITTER_PARTS):
            here = p.jitter & (p.order[:, round_] == part)
            steps.append((name, here & (p.factors[:, part] != _NEUTRAL[part])))
    steps += [("grey", p.grey), ("blur", p.blur), ("solarise", p.solarise), ("flip", p.flip)]
    return [(name, np.flatnonzero(mask)) for name, mask in steps if mask.any()]


def augment(x: Tensor, parameters: ViewParameters) -> Tensor:
    """Augment views (N, 3, T, H, W) of floats in 0..1, each sample by its own parameters.

    Each operation is computed only for the samples that it applies to. Nothing is read back from
    the device, and indices and values are copied to it in one transfer each. ``x`` is overwritten,
    and may share memory with the result.

    Raises:
        ValueError: If the numbers of samples and parameters differ.
    """
    if len(parameters) != len(x):
        raise ValueError(f"{len(x)} samples need as many parameters, got {len(parameters)}")
    steps = planned_operations(parameters)
    if not steps:
        return x
    indices = to_device(np.concatenate([samples for _, samples in steps]), x.device)
    block = np.concatenate([parameters.factors, parameters.sigma[:, None]], axis=1)
    values = to_device(block, x.device)
    sizes = [len(samples) for _, samples in steps]
    for (name, _), index in zip(steps, indices.split(sizes), strict=True):
        operation = _OPERATIONS[name]
        if len(index) == len(x):
            x = operation(x, values)
        else:
            part = operation(x.index_select(0, index), values.index_select(0, index))
            x.index_copy_(0, index, part)
    return x
