"""Rows of the clusters whose centres score best."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

BITS, GROUP = 8, 64


class Clusters:
    """Scores C centres, then names the rows of the `probes` best: P·S + C rows instead of V. Lazy throughout.

    A cluster counts h·c + b, which was fitted to foretell its largest logit. (Equal sizes and several probes as in
    FlashHead; metric and fit are ours, see convert/clusters.py.)

    Centres are kept in 8 bits where D is a multiple of 64: what they only rank is scored exactly afterwards.

    Args:
        members: (C, S) row ids.
        centres: (C, D), near the means of the members' rows.
        bias: (C,).
    """

    def __init__(self, members: mx.array, centres: mx.array, bias: mx.array, probes: int) -> None:
        self.members, self.probes = members, probes
        layer = nn.Linear(centres.shape[1], centres.shape[0])
        layer.weight, layer.bias = centres, bias
        self.clusters = layer if centres.shape[1] % GROUP else layer.to_quantized(GROUP, BITS)

    def read(self, context: Sequence[int]) -> None: ...

    def find(self, normed: mx.array) -> mx.array:  # (1, 1, D) -> (P·S,)
        score = self.clusters(normed).flatten()
        best = mx.argpartition(score, -self.probes)[-self.probes :]
        return self.members[best].flatten()
