"""What both runtimes train alike.

A bridge's loss is the sum over streams s = 1 … S of DECAY^(s-1) times the mean, over the positions of `whole`, of
KL(model ‖ student) + CE(student, the model's likeliest token).
"""

from __future__ import annotations

import numpy as np

STREAMS = 3  # draft steps unrolled, unless told
DECAY = 0.8  # weight of each stream beside the one before (EAGLE-3's)
TOP = 4  # the model's likeliest tokens at each position, scored in every pass that scores only some rows of the head


def whole(scored: np.ndarray, s: int) -> np.ndarray:
    """Where stream s is the s-th step of a chain of scored positions that begins behind another position, (B, L)."""
    chain = scored & (np.arange(scored.shape[1]) >= s)
    for back in range(1, s):
        chain &= np.pad(scored, ((0, 0), (back, 0)))[:, :-back]
    return chain


def conditional(hits: np.ndarray, scored: np.ndarray) -> list[float]:
    """Agreement by draft position, given agreement at all earlier ones of the same chain.

    Args:
        hits: of each stream, (S, B, L). scored: (B, L).
    """
    shares, right = [], np.ones_like(scored)
    for s, hit in enumerate(hits, 1):
        chance = whole(scored, s) & (np.pad(right, ((0, 0), (1, 0)))[:, :-1] if s > 1 else right)
        right = hit & chance
        shares.append(float(right.sum() / max(chance.sum(), 1)))
    return shares
