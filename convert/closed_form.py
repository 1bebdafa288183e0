"""The closed-form start of HVC: least squares in two running sums, no epochs and no GPU.

With both LayerNorms at scale 1 and shift 0, the W that best maps f_t = [LN(x_t); LN(r_t)] to what the gap adds,
g_t = (hidden entering the layer behind the gap) - x_t, is the solution of a linear system in two running sums:

    (Σ f fᵀ + λI) Wᵀ = Σ f gᵀ
"""

from __future__ import annotations

import numpy as np

from mlx_skipspec.errors import SkipSpecError

RIDGE = 1e-4  # λ, as a share of the mean diagonal of Σ f fᵀ


class NormalEquations:
    """The sums, in float64 on the host; whoever adds to them makes the products."""

    def __init__(self, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.ff = np.zeros((2 * hidden_size, 2 * hidden_size))
        self.fg = np.zeros((2 * hidden_size, hidden_size))

    def add(self, ff: np.ndarray, fg: np.ndarray) -> None:
        """Add fᵀf (2H, 2H) and fᵀg (2H, H) of some positions."""
        self.ff += np.asarray(ff, dtype=np.float64)
        self.fg += np.asarray(fg, dtype=np.float64)

    def solve(self) -> dict[str, np.ndarray]:
        """The bridge's tensors.

        Raises:
            SkipSpecError: the model's hidden states were not finite.
        """
        size = self.hidden_size
        if not (np.isfinite(self.ff).all() and np.isfinite(self.fg).all()):
            raise SkipSpecError(
                "The model gave NaN or infinite hidden states; load it with --dtype float32 and fit again."
            )
        ridge = RIDGE * np.trace(self.ff) / len(self.ff)
        self.ff[np.diag_indices(2 * size)] += ridge  # in place: at H = 4096 a copy is half a gigabyte
        w = np.linalg.solve(self.ff, self.fg)
        ones, zeros = np.ones(size), np.zeros(size)
        return {
            "ln_gap.weight": ones,
            "ln_gap.bias": zeros,
            "ln_prev.weight": ones,
            "ln_prev.bias": zeros,
            "proj.weight": np.ascontiguousarray(w.T),
        }
