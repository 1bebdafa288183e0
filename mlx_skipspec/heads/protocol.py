"""What a draft head is."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx


class Head(Protocol):
    def __call__(self, hidden: mx.array, position: int) -> mx.array:  # (1, 1, D) -> (1,)
        """The token a last-layer hidden state speaks for, lazily; `position` is the absolute one of that token."""
