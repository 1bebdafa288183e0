"""Hidden Vector Casting: the small trained map that bridges the layers a draft skips."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.activations import swiglu

from mlx_skipspec.errors import SkipSpecError

EPS = 1e-5  # of both LayerNorms
PACKED_BITS, PACKED_GROUP = 8, 64


def _packs(_: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.weight.shape[1] % PACKED_GROUP == 0


class HVC(nn.Module):
    """y_t = x_t + W f_t, f_t = concat(LN_gap(x_t), LN_prev(r_t)), W of shape (H, 2H) without bias, zero at the start.

    x_t is the hidden state in front of the gap, r_t the last layer's at position t-1; y_t enters the first layer behind
    the gap. Untrained it is a plain layer skip. (Skip, Search, Speculate; Chalmers, 2026.)

    With a `rank` a gated MLP of that width, zero at the start as well, is added: D (silu(G f_t) * U f_t), with G and U
    of shape (rank, 2H), D of (H, rank).
    """

    def __init__(self, hidden_size: int, rank: int = 0) -> None:
        super().__init__()
        self.ln_gap = nn.LayerNorm(hidden_size, eps=EPS)
        self.ln_prev = nn.LayerNorm(hidden_size, eps=EPS)
        self.proj = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.proj.weight = mx.zeros_like(self.proj.weight)
        if rank:
            self.gate = nn.Linear(2 * hidden_size, rank, bias=False)
            self.up = nn.Linear(2 * hidden_size, rank, bias=False)
            self.down = nn.Linear(rank, hidden_size, bias=False)
            self.down.weight = mx.zeros_like(self.down.weight)

    def __call__(self, x: mx.array, r: mx.array) -> mx.array:  # (B, L, D), (B, L, D) -> (B, L, D)
        f = mx.concatenate([self.ln_gap(x), self.ln_prev(r.astype(x.dtype))], axis=-1)
        y = x + self.proj(f)
        return y + self.down(swiglu(self.gate(f), self.up(f))) if "gate" in self else y

    def packed(self) -> HVC:
        """The same with its matrices in 8 bits, groups of 64: a good quarter of float32's bytes to hold and to read for
        every drafted token. Matrices whose rows are no multiple of 64 stay as they are."""
        nn.quantize(self, PACKED_GROUP, PACKED_BITS, class_predicate=_packs)
        return self

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, np.ndarray], dtype: mx.Dtype = mx.float32, hidden_size: int | None = None
    ) -> HVC:
        """Build from a sidecar's tensors, computing in `dtype`; `hidden_size` is the model's, else the tensors' own.

        Raises:
            SkipSpecError: a tensor is missing, unknown, of another shape or not finite.
        """
        if hidden_size is None:
            hidden_size = max(tensors["ln_gap.weight"].size if "ln_gap.weight" in tensors else 0, 1)
        gate = tensors.get("gate.weight")
        bridge = cls(hidden_size, rank=0 if gate is None else len(gate))
        need = {name: tuple(value.shape) for name, value in tree_flatten(bridge.parameters())}
        got = {name: tuple(value.shape) for name, value in tensors.items()}
        if wrong := [name for name in sorted(need.keys() | got.keys()) if need.get(name) != got.get(name)]:
            have, want = got.get(wrong[0], "missing"), need.get(wrong[0], "no such tensor")
            raise SkipSpecError(
                f"The bridge's {wrong[0]} is {have}; need {want}. Fit it again with `mlx-skipspec fit`."
            )
        if not all(np.isfinite(value).all() for value in tensors.values()):
            raise SkipSpecError("The bridge holds NaN or infinite numbers. Fit it again with `mlx-skipspec fit`.")
        bridge.load_weights([(name, mx.array(value).astype(dtype)) for name, value in tensors.items()])
        return bridge
