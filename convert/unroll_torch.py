"""Exact unrolled training, in PyTorch: S streams over a window are the S steps of every draft chain in it.

Stream s at position i is the s-th step of a chain that began at i-s+1. It attends to the teacher's rows at positions
<= i-s and to the chain's own: stream t's at i-s+t for t = 1 … s. Its r is the teacher's last hidden state at i-1 for
s = 1, else stream s-1's. Tokens are the text's, as on an accepted chain. The twin is `unroll_mlx`.

Only some positions may be asked for; then a chain is whole where it and all before it are among them, see `whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from mlx_skipspec.convert.teacher import Layer

NOWHERE = -(1 << 30)  # no position follows this one
Rows = tuple[torch.Tensor, torch.Tensor]  # keys and values, each (B, KV heads, L, head size)


def streams(
    bridge: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    layers: Sequence[Layer],
    rows: Sequence[Rows],
    x: torch.Tensor,
    last: torch.Tensor,
    cos_sin: tuple[torch.Tensor, torch.Tensor],
    position: torch.Tensor,
    count: int,
) -> list[torch.Tensor]:
    """Last hidden states (B, P, D) of streams 1 … count; stream s is meant at the positions of `whole`.

    Args:
        bridge: over the gap, (x, r) -> y.
        layers, rows: those behind the gap, and the teacher's keys and values there.
        x, last: the teacher's hidden states in front of the gap and behind the last layer, (B, L, D).
        cos_sin: RoPE of the positions asked for, (B, P, rotated size).
        position: those asked for, rising, and -1 behind them, (B, P).
    """
    out: list[torch.Tensor] = []
    chains: list[list[Rows]] = [[] for _ in layers]
    x, r = picked(x, position), picked(later(last, 1), position)
    for _ in range(count):
        h = bridge(x, r)
        for layer, teacher, chain in zip(layers, rows, chains, strict=True):
            q, k, v = layer.project(h, cos_sin)
            chain.append((k, v))
            h = layer.out(h, attend(q, teacher, chain, position, layer.scale, layer.window))
        out.append(h)
        r = later(h, 1)
    return out


def attend(
    q: torch.Tensor,
    teacher: Rows,
    chain: Sequence[Rows],
    position: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of stream s = len(chain): over the teacher's rows up to i-s, and one row of each stream so far."""
    batch, heads, asked, size = q.shape
    groups, length, s = teacher[0].shape[1], teacher[0].shape[2], len(chain)
    q = q.view(batch, groups, heads // groups, asked, size)
    distance = position[..., None] - torch.arange(length, device=q.device)
    seen = distance >= s
    if window is not None:
        seen &= distance < window
    far = (q.flatten(2, 3) @ teacher[0].transpose(-1, -2)).view(*q.shape[:4], length).float() * scale
    scores = [far.masked_fill(~seen[:, None, None], -torch.inf)]
    for back, (k, _) in zip(reversed(range(s)), chain, strict=True):
        near = (q * later(k, back)[:, :, None]).sum(-1, keepdim=True).float() * scale
        there = follows(position, back) & (window is None or back < window)
        scores.append(near.masked_fill(~there[:, None, None, :, None], -torch.inf))
    weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1).to(q.dtype)
    mixed = (weights[..., :length].flatten(2, 3) @ teacher[1]).view(q.shape)
    for t, (back, (_, v)) in enumerate(zip(reversed(range(s)), chain, strict=True)):
        mixed = mixed + weights[..., length + t, None] * later(v, back)[:, :, None]
    return mixed.view(batch, heads, asked, size)


def follows(position: torch.Tensor, by: int) -> torch.Tensor:
    """Where the position `by` before is asked for too, (B, P)."""
    before = F.pad(position, (by, 0), value=NOWHERE)[:, : position.shape[1]]
    return position == before + by


def whole(position: torch.Tensor, s: int) -> torch.Tensor:
    """Where stream s is the s-th step of a chain that began at a position asked for, and behind another, (B, P)."""
    return (position >= s) & follows(position, s - 1)


def picked(h: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """(B, L, D) at (B, P)."""
    return h.gather(1, position.clamp(min=0)[..., None].expand(-1, -1, h.shape[-1]))


def later(h: torch.Tensor, by: int) -> torch.Tensor:
    """What stood at position i-by, for every i; zeros in front. Positions are the axis before the last."""
    return h if by == 0 else F.pad(h, (0, 0, by, 0))[..., : h.shape[-2], :]


def divergence(
    student: torch.Tensor, teacher: torch.Tensor, log_weight: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(teacher ‖ student) + CE(student, the teacher's likeliest token), and whether both have the same likeliest.

    Args:
        student, teacher: logits over some rows of the head, (..., V'); softmax in fp32.
        log_weight: log of how many rows of the vocabulary each of them stands for, (V',).
    """
    best = teacher.argmax(-1)
    hit = student.argmax(-1) == best
    p = torch.log_softmax(teacher.float() + log_weight, dim=-1)
    q = torch.log_softmax(student.float() + log_weight, dim=-1)
    kl = (p.exp() * (p - q)).sum(-1)
    return kl - q.gather(-1, best[..., None])[..., 0], hit
