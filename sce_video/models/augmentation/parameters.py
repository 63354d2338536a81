"""Random parameters of a view: their distributions, given in numbers or by name, and the draw.

Everything here runs on the host with numpy, so that the samples of each operation are known without
synchronising with the device. A sample's parameters depend on its seed and the index of the view
only, not on the other samples of the batch, the rank or the worker.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sce_video.models.augmentation.blur import BLUR_KERNEL

JITTER_PARTS = ("brightness", "contrast", "saturation", "hue")

# First word of the entropy of every draw made here. Without it the generator of view 0,
# default_rng([seed, 0]), would equal default_rng(seed), which the dataset may use for the crop:
# numpy pads entropy with zeros.
_STREAM = 0x56494557
_DRAWS = 14


@dataclass(frozen=True, kw_only=True)
class ViewAugmentation:
    """The distributions of a view's random parameters. The default changes nothing.

    Attributes:
        brightness: Factor from U(max(0, 1 - b), 1 + b).
        contrast: Factor from U(max(0, 1 - c), 1 + c).
        saturation: Factor from U(max(0, 1 - s), 1 + s).
        hue: Shift from U(-h, h) of a full circle, h at most 0.5.
        jitter_prob: Probability of the four operations above together, in random order.
        grey_prob: Probability of the conversion to grey.
        blur_prob: Probability of a Gaussian blur with 23 taps.
        solarise_prob: Probability of solarisation: values of 0.5 and more are inverted.
        flip_prob: Probability of a horizontal flip.
        blur_sigma: Sigma in pixels from U(low, high); high is at most 11, the kernel's radius.

    Raises:
        ValueError: A value is out of its range.
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
        for name in ("jitter_prob", "grey_prob", "blur_prob", "solarise_prob", "flip_prob"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is a probability, 0 to 1, got {value}")
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be 0 or more, got {value}")
        if not 0.0 <= self.hue <= 0.5:
            raise ValueError(
                f"hue must be 0 to 0.5 (half a circle each way), got {self.hue}: "
                "use a smaller value or strength"
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
    """Random parameters of one view of N samples, drawn whether or not they are applied.

    Attributes:
        jitter, grey, blur, solarise, flip: bool (N,), whether the operation is applied.
        factors: float32 (N, 4), brightness, contrast, saturation, hue shift.
        order: int (N, 4), columns of ``factors`` in order of application.
        sigma: float32 (N,), of the blur, in pixels.
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
        """The parameters of some of the samples."""
        return ViewParameters(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


# Paper, table tab:augmentations, with the colour jitter of strength 1, twice the table's.
_STRONG: dict[str, Any] = dict(
    brightness=0.8, contrast=0.8, hue=0.2, jitter_prob=0.8, grey_prob=0.2, flip_prob=0.5
)
_NAMED = {
    "weak": ViewAugmentation(flip_prob=0.5),
    "strong": ViewAugmentation(**_STRONG, saturation=0.8, blur_prob=0.5, solarise_prob=0.0),
    "strong-alpha": ViewAugmentation(**_STRONG, saturation=0.4, blur_prob=1.0, solarise_prob=0.0),
    "strong-beta": ViewAugmentation(**_STRONG, saturation=0.4, blur_prob=0.1, solarise_prob=0.2),
    "strong-gamma": ViewAugmentation(**_STRONG, saturation=0.4, blur_prob=0.5, solarise_prob=0.2),
}


def named_view(name: str, strength: float = 0.5) -> ViewAugmentation:
    """One of the five augmentations of the paper's table ``tab:augmentations``.

    Args:
        name: "weak", "strong", "strong-alpha", "strong-beta" or "strong-gamma".
        strength: s of the colour jitter. 0.5 gives the table (brightness 0.4, contrast 0.4,
            saturation 0.2, hue 0.1, and saturation 0.4 for "strong"); the best video setting has
            1.0, twice that. "weak" has no colour jitter and ignores it.

    Raises:
        ValueError: The name is unknown or the strength negative or above 2.5 (hue above 0.5).
    """
    if name not in _NAMED:
        raise ValueError(f"unknown view {name!r}{_suggest(name, _NAMED)}")
    if strength < 0:
        raise ValueError(f"strength must be 0 or more, got {strength}")
    full = _NAMED[name]
    return replace(full, **{part: getattr(full, part) * strength for part in JITTER_PARTS})


def build_view(config: ViewAugmentation | Mapping[str, Any]) -> ViewAugmentation:
    """A :class:`ViewAugmentation` from a config.

    Args:
        config: ``dict(name=..., strength=...)``, a named augmentation, where any attribute of
            :class:`ViewAugmentation` given too overrides the named one's; or such attributes
            only; or a :class:`ViewAugmentation` itself.

    Raises:
        ValueError: It is not a dict, a key is unknown, or ``strength`` is given without ``name``.
    """
    if isinstance(config, ViewAugmentation):
        return config
    if not isinstance(config, Mapping):
        raise ValueError(f"a view is a dict such as dict(name='strong'), got {config!r}")
    known = [f.name for f in fields(ViewAugmentation)]
    values = dict(config)
    for key in values:
        if key not in (*known, "name", "strength"):
            raise ValueError(f"unknown key {key!r} of a view{_suggest(key, known)}")
    named = {key: values.pop(key) for key in ("name", "strength") if key in values}
    if "strength" in named and "name" not in named:
        raise ValueError(f"strength={named['strength']} scales a named view: give name=... too")
    return replace(named_view(**named) if named else ViewAugmentation(), **values)


def _suggest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    hint = f": did you mean {near[0]!r}?" if near else ";"
    return f"{hint} Known: {', '.join(known)}"


def draw_parameters(
    augmentation: ViewAugmentation, seeds: Iterable[int], view: int
) -> ViewParameters:
    """Draw the parameters of view number ``view`` for the samples with these seeds.

    Every sample uses the same 14 uniform numbers in the same order, whatever the distributions:
    5 decisions, 4 factors, sigma, and 4 keys whose ranking is the order of the colour jitter (all
    24 orders are equally likely).
    """
    entropy = [[_STREAM, view, int(seed) % 2**64] for seed in seeds]
    u = np.array([np.random.default_rng(words).random(_DRAWS) for words in entropy])
    u = u.reshape(-1, _DRAWS)
    a = augmentation
    probabilities = (a.jitter_prob, a.grey_prob, a.blur_prob, a.solarise_prob, a.flip_prob)
    decisions = u[:, :5] < np.array(probabilities)
    spread = np.array([a.brightness, a.contrast, a.saturation])
    low = np.append(np.maximum(0.0, 1.0 - spread), -a.hue)
    high = np.append(1.0 + spread, a.hue)
    sigma_low, sigma_high = a.blur_sigma
    jitter, grey, blur, solarise, flip = decisions.T
    return ViewParameters(
        jitter=jitter,
        grey=grey,
        blur=blur,
        solarise=solarise,
        flip=flip,
        factors=(low + u[:, 5:9] * (high - low)).astype(np.float32),
        order=np.argsort(u[:, 10:14], axis=1),
        sigma=(sigma_low + u[:, 9] * (sigma_high - sigma_low)).astype(np.float32),
    )
