"""What a draft head is."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx


class Head(Protocol):
    def __call__(self, hidden: mx.array) -> mx.array:  # (1, L, D) -> (L,)
        """The most likely token ids of last-layer hidden states, lazily."""
