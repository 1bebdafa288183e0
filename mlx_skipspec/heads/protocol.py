"""What a draft head is, what it reads of the target, and who may name its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx


class Head(Protocol):
    """May miss the token all rows would give; never gives one that is not there."""

    def read(self, context: Sequence[int]) -> None:
        """Hears all tokens so far, once in front of every draft."""

    def __call__(self, hidden: mx.array, position: int) -> tuple[mx.array, mx.array]:  # (1, 1, D) -> (1,), (1,)
        """The token a last-layer hidden state speaks for and how probable the head holds it, both lazy; `position` is
        the absolute one of that token."""


class Rows(Protocol):
    """The target as a head sees it."""

    @property
    def vocab_size(self) -> int: ...

    def normed(self, h: mx.array) -> mx.array: ...  # (1, 1, D) -> (1, 1, D)

    def score(self, normed: mx.array, rows: mx.array) -> mx.array: ...  # (1, 1, D), (n,) -> (1, 1, n)


class Finder(Protocol):
    """Names rows of the head that are worth scoring, all of them ids of tokens; it may name one twice."""

    def read(self, context: Sequence[int]) -> None:
        """As a head's."""

    def find(self, normed: mx.array) -> mx.array:  # (1, 1, D) -> (n,), n >= 1
        """The rows for what leaves the final norm."""
