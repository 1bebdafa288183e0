"""The rows a finder names, scored exactly."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlx_skipspec.heads.protocol import Finder, Rows
from mlx_skipspec.sampling import GREEDY, Sampler


class Shortlist:
    """Chooses among a few rows of the target's own head as DenseHead does among all: the same logits, the same draw.

    The others count as -∞ in their places of the vocabulary. So ties go to the smallest id, a row named twice is still
    one token, and at temperature > 0 every token meets the very noise it will meet when the target draws.
    """

    def __init__(self, target: Rows, finder: Finder, sampler: Sampler = GREEDY) -> None:
        self.target, self.finder, self.sampler = target, finder, sampler

    def read(self, context: Sequence[int]) -> None:
        self.finder.read(context)

    def __call__(self, hidden: mx.array, position: int) -> tuple[mx.array, mx.array]:  # (1, 1, D) -> (1,), (1,)
        normed = self.target.normed(hidden)
        rows = self.finder.find(normed)
        some = self.target.score(normed, rows).squeeze(0)
        total, last = mx.logsumexp(some, axis=-1), self.target.vocab_size - 1
        if self.sampler.temperature == 0:  # there is no need to go through all the vocabulary
            best = some.max(axis=-1)
            token = mx.where(some == best[:, None], rows, last).min(axis=-1)
            return token.astype(mx.uint32), mx.exp(best - total)
        logits = mx.put_along_axis(mx.full((1, last + 1), -mx.inf, dtype=some.dtype), rows[None], some, axis=1)
        chosen = self.sampler.choose(logits, position)
        return chosen, mx.exp(mx.take_along_axis(logits, chosen[:, None], axis=-1).squeeze(-1) - total)
