"""The most frequent rows, and those of the text so far."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

RECENT = 512  # tokens of the text whose rows are scored too


class Subset:
    """Names the same rows at every step of a draft: frequent tokens (FR-Spec), and what the text is about (MicroSpec).

    Args:
        frequent: ids, (n,).
    """

    def __init__(self, frequent: np.ndarray, vocab_size: int) -> None:
        self._frequent = np.zeros(vocab_size, dtype=bool)
        self._frequent[frequent] = True
        self._few = mx.array(np.flatnonzero(self._frequent).astype(np.uint32))
        self._rows = self._few

    def read(self, context: Sequence[int]) -> None:
        recent = np.unique(np.array(context[-RECENT:]))
        more = recent[~self._frequent[recent]].astype(np.uint32)
        self._rows = mx.concatenate([self._few, mx.array(more)]) if more.size else self._few

    def find(self, normed: mx.array) -> mx.array:  # (1, 1, D) -> (n,)
        return self._rows
