"""Every row of the model's own head: exact, and as dear as the target's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import mlx.core as mx


class HasLogits(Protocol):
    @property
    def logits(self) -> Callable[[mx.array], mx.array]: ...


class DenseHead:
    """argmax of the target's logits; ties go to the smallest id."""

    def __init__(self, target: HasLogits) -> None:
        self.target = target

    def __call__(self, hidden: mx.array) -> mx.array:  # (1, L, D) -> (L,)
        return mx.argmax(self.target.logits(hidden)[0], axis=-1)
