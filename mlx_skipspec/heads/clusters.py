"""Rows of the clusters whose centres score best."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


class Clusters:
    """Scores C centres, then names the rows of the `probes` best: P·S + C rows instead of V. Lazy throughout.

    A cluster counts h·c + b, which was fitted to foretell its largest logit. (Equal sizes and several probes as in
    FlashHead; metric and fit are ours, see convert/clusters.py.)

    Args:
        members: (C, S) row ids.
        centres: (C, D), near the means of the members' rows.
        bias: (C,).
    """

    def __init__(self, members: mx.array, centres: mx.array, bias: mx.array, probes: int) -> None:
        self.members, self.centres, self.bias, self.probes = members, centres, bias, probes

    def read(self, context: Sequence[int]) -> None: ...

    def find(self, normed: mx.array) -> mx.array:  # (1, 1, D) -> (P·S,)
        score = (normed @ self.centres.T).flatten() + self.bias
        best = mx.argpartition(score, -self.probes)[-self.probes :]
        return self.members[best].flatten()
