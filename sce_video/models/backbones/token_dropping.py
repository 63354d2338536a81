"""Token dropping: a training step of a transformer computes some of the tokens of each clip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sce_video.utils.tensors import to_device

TOKEN_PATTERNS = ("random", "tube")
# First word of the entropy, so that tokens and augmentation (models/augmentation.py) are unrelated.
_STREAM = 0x544F4B45


class TokenDropping:
    """The tokens that a step keeps, a function of the seeds of its samples and of the view.

    "random" is a subset of all positions, "tube" the same positions in space at all times. Dropping
    95 % at random raises the accuracy of LeVJEPA (arXiv 2608.27395), tubes lower it.

    Args:
        keep_tokens: Share that is kept, above 0, to 1; at least one token, or tube, is.
        pattern: One of :data:`TOKEN_PATTERNS`.
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
        # Numbers of the host, other ones in every step. Not a decorator: it imports torch._dynamo.
        self._draw = _draw if keep_tokens == 1.0 else torch.compiler.disable(_draw)

    @contextmanager
    def step(self, seeds: Sequence[int]) -> Iterator[None]:
        """Drop tokens of samples with these seeds inside; outside all tokens are kept.

        The backbone gets the views of all samples one after the other, or several in one batch.
        """
        self._seeds = seeds
        self._drawn = 0
        try:
            yield
        finally:
            self._seeds = ()

    def draw(self, count: int, grid: Sequence[int], device: torch.device) -> Tensor | None:
        """Kept positions (count, K) of the next samples in a grid (T', H', W'), ascending; or None.

        None keeps all: outside of a step, without gradient (target networks), or at share 1.
        """
        return None if self.keep_tokens == 1.0 else self._draw(self, count, grid, device)

    def next_sample(self) -> tuple[int, int]:
        """Return the view and the seed, as an unsigned number, of the next sample of the step."""
        view, sample = divmod(self._drawn, len(self._seeds))
        self._drawn += 1
        return view, self._seeds[sample] % 2**64


def _draw(
    tokens: TokenDropping, count: int, grid: Sequence[int], device: torch.device
) -> Tensor | None:
    """As :meth:`TokenDropping.draw`, below share 1."""
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
