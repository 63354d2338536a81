"""Token dropping, which lets a transformer compute only some of a clip's tokens in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sce_video.utils.tensors import to_device

TOKEN_PATTERNS = ("random", "tube")
# First word of the entropy. It differs from the word in augmentation.py, so that tokens and colours
# are drawn independently of each other.
_STREAM = 0x544F4B45


class TokenDropping:
    """The tokens that a step keeps, drawn from the seeds of its samples and the index of the view.

    "random" keeps any positions, and "tube" keeps the same positions in space at all times.
    Dropping 95 % at random raises the accuracy of LeVJEPA (arXiv 2608.27395), and tubes lower it.

    Args:
        keep_tokens: Share of the tokens that are kept, above 0 and at most 1. At least one token or
            tube is kept.
        pattern: One of :data:`TOKEN_PATTERNS`.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, keep_tokens: float, pattern: str) -> None:
        if not 0.0 < keep_tokens <= 1.0:
            raise ValueError(f"keep_tokens must be above 0 and at most 1, got {keep_tokens}")
        if pattern not in TOKEN_PATTERNS:
            known = ", ".join(TOKEN_PATTERNS)
            raise ValueError(f"token_pattern must be one of {known}, got {pattern!r}")
        self.keep_tokens = keep_tokens
        self.pattern = pattern
        self._seeds: Sequence[int] = ()
        self._drawn = 0
        # Do not compile this method, because the host draws new numbers in every step. If disable()
        # were a decorator, it would import torch._dynamo even if no tokens are dropped.
        self._draw = _draw if keep_tokens == 1.0 else torch.compiler.disable(_draw)

    def __reduce__(self) -> tuple[type, tuple[float, str]]:
        # A function returned by torch.compiler.disable() cannot be pickled, but networks are sent
        # to the processes that embed videos.
        return type(self), (self.keep_tokens, self.pattern)

    @contextmanager
    def step(self, seeds: Sequence[int]) -> Iterator[None]:
        """Drop tokens of the samples with these seeds inside the block. Outside, all are kept.

        The backbone must receive the views of all samples one after the other, each in one batch or
        several together.
        """
        self._seeds = seeds
        self._drawn = 0
        try:
            yield
        finally:
            self._seeds = ()

    def draw(self, count: int, grid: Sequence[int], device: torch.device) -> Tensor | None:
        """Return the positions in a grid that are kept for the next samples.

        Args:
            count: Number of samples.
            grid: (T', H', W').
            device: Device of the result.

        Returns:
            Ascending positions (count, K), or None if all tokens are kept: outside a step, without
            gradient (target networks), or if the share is 1.
        """
        return None if self.keep_tokens == 1.0 else self._draw(self, count, grid, device)

    def next_sample(self) -> tuple[int, int]:
        """Return view and seed of the step's next sample. The seed is an unsigned number."""
        view, sample = divmod(self._drawn, len(self._seeds))
        self._drawn += 1
        return view, self._seeds[sample] % 2**64


def _draw(
    tokens: TokenDropping, count: int, grid: Sequence[int], device: torch.device
) -> Tensor | None:
    """Draw positions like :meth:`TokenDropping.draw` if the share is below 1."""
    if not tokens._seeds or not torch.is_grad_enabled():
        return None
    tube = tokens.pattern == "tube"
    space = grid[1] * grid[2]
    places = space if tube else grid[0] * space
    keep = max(1, round(tokens.keep_tokens * places))
    kept = np.empty((count, keep), dtype=np.int64)
    for row in kept:
        words = [_STREAM, *tokens.next_sample()]
        row[:] = np.sort(np.random.default_rng(words).permutation(places)[:keep])
    if tube:
        kept = (kept[:, None] + space * np.arange(grid[0])[:, None]).reshape(count, -1)
    return to_device(kept, device)
