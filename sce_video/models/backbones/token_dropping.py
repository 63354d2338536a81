"""Token dropping, which lets a transformer compute only some of a clip's tokens in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sce_video.utils.tensors import to_device

TOKEN_PATTERNS = ("random", "tube")
# First word of the entropy. It differs from the one in augmentation.py, so tokens and colours are
# drawn independently.
_STREAM = 0x544F4B45


class TokenDropping:
    """The tokens that a step keeps, which depend on the seeds of its samples and on the view.

    "random" is a subset of all positions, and "tube" keeps the same positions in space at all
    times. Dropping 95 % at random raises the accuracy of LeVJEPA (arXiv 2608.27395), and tubes
    lower it.

    Args:
        keep_tokens: Share of tokens that is kept, above 0 and at most 1. At least one token or tube
            is kept.
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
        # The host draws new numbers in every step, so this must not be compiled. A decorator would
        # import torch._dynamo for everyone.
        self._draw = _draw if keep_tokens == 1.0 else torch.compiler.disable(_draw)

    @contextmanager
    def step(self, seeds: Sequence[int]) -> Iterator[None]:
        """Drop tokens of the samples with these seeds inside the block, and keep all outside.

        The backbone receives the views of all samples one after the other, or several in one batch.
        """
        self._seeds = seeds
        self._drawn = 0
        try:
            yield
        finally:
            self._seeds = ()

    def draw(self, count: int, grid: Sequence[int], device: torch.device) -> Tensor | None:
        """Return the kept positions of the next samples in a grid.

        Args:
            count: Number of samples.
            grid: (T', H', W').
            device: Device of the result.

        Returns:
            Ascending positions (count, K). None keeps all tokens: outside a step, without gradient
            (target networks), or if the share is 1.
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
    """Draw positions like :meth:`TokenDropping.draw`, for a share below 1."""
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
