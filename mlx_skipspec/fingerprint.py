"""By what a model is known again: a few of its weights.

Casting or quantising moves them a little, another model moves them altogether, so they are compared by cosine and not
by equality.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

SAME = 0.8  # cosine; 2-bit quantisation still gives about 0.87, an unrelated model within ±0.2 of 0
PROBES = 64  # weights read per matrix


def probe(rows_of: Callable[[list[int]], np.ndarray], count: int) -> tuple[float, ...]:
    """PROBES weights of a matrix of `count` rows, as a vector of length 1; `rows_of` gives rows, (n,) -> (n, D)."""
    rows = np.asarray(rows_of([i * count // PROBES for i in range(PROBES)]), dtype=np.float64)
    # A column per row, all over the width: 97 is prime to the widths in use.
    values = np.array([row[(97 * i) % len(row)] for i, row in enumerate(rows)])
    return tuple(round(float(value), 6) for value in values / (np.linalg.norm(values) or 1.0))


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """Cosine of two fingerprints; 0 where they are of different lengths."""
    a, b = np.array(one), np.array(other)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) or 1.0)) if a.shape == b.shape else 0.0
