"""The closed-form start, in MLX: what a target reads goes into the sums of `closed_form`."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlx_skipspec.convert.closed_form import NormalEquations
from mlx_skipspec.convert.fit_training import features_of
from mlx_skipspec.hvc import EPS
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.target import Target


class LeastSquares:
    """The closed-form start from windows a target reads one after another."""

    def __init__(self, target: Target, plan: SkipPlan) -> None:
        self.target, self.plan = target, plan
        self.equations = NormalEquations(target.hidden_size)

    def add(self, window: Sequence[int]) -> dict[str, mx.array]:
        """Add a window's positions, all but the first, which has no r; what training needs of it, lazy."""
        features = features_of(self.target, self.plan, window)
        x, entering, last = features["x"], features.pop("entering"), features["last"]
        f = mx.concatenate([layer_norm(x[1:]), layer_norm(last[:-1])], axis=-1)
        gained = (entering - x)[1:].astype(mx.float32)
        self.equations.add(np.array(f.T @ f), np.array(f.T @ gained))
        return features

    def solve(self) -> dict[str, np.ndarray]:
        """The bridge's tensors; raises what `NormalEquations.solve` does."""
        return self.equations.solve()


def layer_norm(x: mx.array) -> mx.array:
    """In fp32, at scale 1 and shift 0."""
    return mx.fast.layer_norm(x.astype(mx.float32), None, None, EPS)
