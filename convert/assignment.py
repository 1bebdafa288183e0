"""Which row goes to which cluster: the arithmetic of one pass."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np


def at_hand(*arrays: mx.array) -> tuple[Any, ...]:
    """The module to compute with, and the arrays as it has them: MLX on a GPU; on a CPU numpy, whose BLAS is good
    everywhere, without copying."""
    if mx.default_device() == mx.Device(mx.gpu):
        return mx, *arrays
    return np, *(np.array(array, copy=False) for array in arrays)


def nearest(x: mx.array, towards: mx.array, offset: mx.array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest x · towards - offset of each x, best first: where, and how large.

    Shapes: (n, D), (D, C), (C,) -> (n, k) both.
    """
    xp, x, towards, offset = at_hand(x, towards, offset)
    scores = x @ towards - offset
    top = xp.argpartition(-scores, k - 1, axis=-1)[:, :k]
    found = xp.take_along_axis(scores, top, axis=-1)
    order = xp.argsort(-found, axis=-1)
    best, score = (np.array(xp.take_along_axis(part, order, axis=-1)) for part in (top, found))
    return best, score


def largest_in_each(x: mx.array, towards: mx.array, size: int) -> np.ndarray:  # (C·size, D), (D, n) -> (C, n)
    """The largest x · towards among every `size` rows of x."""
    _, x, towards = at_hand(x, towards)
    return np.array((x @ towards).reshape(-1, size, towards.shape[1]).max(1))


def first_with_room(choices: np.ndarray, gains: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row's first choice that has room, and its regret if it does not get there: what that gains over the next
    choice with room, endless where there is none. (n, k), (n, k), (C,) -> (n,), (n,)."""
    order = np.argsort(room[choices] == 0, axis=1, kind="stable")  # open ones first, as ranked
    first = np.take_along_axis(choices, order[:, :1], axis=1)[:, 0]
    if choices.shape[1] == 1:
        return first, np.full(len(choices), np.inf)
    second = np.take_along_axis(choices, order[:, 1:2], axis=1)[:, 0]
    gain = np.take_along_axis(gains, order[:, :2], axis=1)
    return first, np.where(room[second] > 0, gain[:, 0] - gain[:, 1], np.inf)


def admitted(cluster: np.ndarray, regret: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Which of the rows that ask for a cluster get in: those of largest regret, as many as there is room for.

    Shapes: (n,), (n,), (C,) -> indices into the n.
    """
    order = np.lexsort((-regret, cluster))
    first = np.searchsorted(cluster[order], cluster[order])  # where each one's cluster begins
    return order[np.arange(len(order)) - first < room[cluster[order]]]
