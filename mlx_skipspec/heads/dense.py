"""Every row of the model's own head: exact, and as dear as the target's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from mlx_skipspec.sampling import GREEDY, Sampler


class DenseHead:
    """Chooses from the model's own logits just as the target will.

    Drawing with the target's key makes draft and target share the noise of a position, so that a draft close to the
    target's distribution mostly draws the same token: at temperature > 0 far more often than an argmax draft is right.
    Processors are left to the target.

    Args:
        logits: (1, L, D) last-layer hidden states -> (1, L, V).
        sampler: how tokens are drawn.
    """

    def __init__(self, logits: Callable[[mx.array], mx.array], sampler: Sampler = GREEDY) -> None:
        self.logits, self.sampler = logits, sampler

    def read(self, context: Sequence[int]) -> None: ...

    def __call__(self, hidden: mx.array, position: int) -> tuple[mx.array, mx.array]:  # (1, 1, D) -> (1,), (1,)
        return self.sampler.draw(self.logits(hidden).squeeze(0), position)
