"""The bridge in PyTorch: parameter names, shapes and numbers as in `mlx_skipspec.hvc`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

EPS = 1e-5  # of both LayerNorms


class HVC(nn.Module):
    """y_t = x_t + W f_t (+ D (silu(G f_t) * U f_t) with a `rank`), f_t = concat(LN_gap(x_t), LN_prev(r_t)).

    W: (H, 2H), G and U: (rank, 2H), D: (H, rank), no biases. W and D are zero at the start: a plain layer skip.
    While it trains, `dropout` of f_t's numbers are zero, the others larger by as much.
    """

    def __init__(self, hidden_size: int, rank: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.ln_gap = nn.LayerNorm(hidden_size, eps=EPS)
        self.ln_prev = nn.LayerNorm(hidden_size, eps=EPS)
        self.proj = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        nn.init.zeros_(self.proj.weight)
        self.rank = rank
        if rank:
            self.gate = nn.Linear(2 * hidden_size, rank, bias=False)
            self.up = nn.Linear(2 * hidden_size, rank, bias=False)
            self.down = nn.Linear(rank, hidden_size, bias=False)
            nn.init.zeros_(self.down.weight)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:  # (B, L, D), (B, L, D) -> (B, L, D)
        """In the bridge's own dtype; the result in x's."""
        dtype = self.proj.weight.dtype
        f = torch.cat([self.ln_gap(x.to(dtype)), self.ln_prev(r.to(dtype))], dim=-1)
        f = F.dropout(f, self.dropout, self.training)
        y = x.to(dtype) + self.proj(f)
        if self.rank:
            y = y + self.down(F.silu(self.gate(f)) * self.up(f))
        return y.to(x.dtype)

    def tensors(self) -> dict[str, np.ndarray]:
        """The parameters as a sidecar holds them."""
        return {name: value.detach().float().cpu().numpy() for name, value in self.state_dict().items()}

    @torch.no_grad()
    def start_from(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take over the tensors given; the others stay at their start."""
        for name, value in tensors.items():
            self.get_parameter(name).copy_(torch.as_tensor(np.asarray(value, dtype=np.float32)))
