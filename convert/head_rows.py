"""Which rows of the head a training step scores: the loss over a large vocabulary is most of a step's work."""

from __future__ import annotations

import numpy as np


def head_rows(
    top: np.ndarray, frequent: np.ndarray, vocab_size: int, sampled: int, seed: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Row ids, and the log of how many rows each stands for; all rows when that is no more.

    The teacher's likeliest tokens of every position in the batch and the text's most frequent tokens are there for
    sure; of the others `sampled` are drawn, each standing for its share. Partition functions are unbiased, and since
    nearly all probability lies on the sure rows their logarithms nearly are (benchmarks/LOG.md has the bias measured).

    Args:
        top: token ids, any shape. frequent: token ids, (n,).
        seed: makes the draw; the same seed, the same rows.
    """
    sure = np.zeros(vocab_size, dtype=bool)
    sure[top.ravel()] = True
    sure[frequent] = True
    others = np.flatnonzero(~sure)
    if len(others) <= sampled:
        return np.arange(vocab_size), np.zeros(vocab_size, dtype=np.float32)
    drawn = np.random.default_rng(seed).choice(others, sampled, replace=False)
    ids = np.concatenate([np.flatnonzero(sure), drawn])
    weight = np.zeros(len(ids), dtype=np.float32)
    weight[-sampled:] = np.log(len(others) / sampled)
    return ids, weight


def most_frequent(windows: np.ndarray, vocab_size: int, count: int = 1024) -> np.ndarray:
    """The `count` most frequent token ids of a text, most frequent first."""
    return np.argsort(-np.bincount(windows.ravel(), minlength=vocab_size), kind="stable")[:count]
