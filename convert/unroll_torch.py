"""Exact unrolled training, in PyTorch: S streams over a window are the S steps of every draft chain in it.

Stream s at position i is the s-th step of a chain that began at i-s+1. It attends to the teacher's rows at positions
<= i-s and to the chain's own: stream t's at i-s+t for t = 1 … s. Its r is the teacher's last hidden state at i-1 for
s = 1, else stream s-1's. Tokens are the text's, as on an accepted chain. The twin is `unroll_mlx`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from mlx_skipspec.convert.teacher import Layer

Rows = tuple[torch.Tensor, torch.Tensor]  # keys and values, each (B, KV heads, L, head size)


def streams(
    bridge: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    layers: Sequence[Layer],
    rows: Sequence[Rows],
    x: torch.Tensor,
    last: torch.Tensor,
    cos_sin: tuple[torch.Tensor, torch.Tensor],
    count: int,
) -> list[torch.Tensor]:
    """Last hidden states (B, L, D) of streams 1 … count; stream s is meant from position s on.

    Args:
        bridge: over the gap, (x, r) -> y.
        layers, rows: those behind the gap, and the teacher's keys and values there.
        x, last: the teacher's hidden states in front of the gap and behind the last layer, (B, L, D).
        cos_sin: RoPE of the window's positions.
    """
    out: list[torch.Tensor] = []
    chains: list[list[Rows]] = [[] for _ in layers]
    r = later(last, 1)
    for _ in range(count):
        h = bridge(x, r)
        for layer, teacher, chain in zip(layers, rows, chains, strict=True):
            q, k, v = layer.project(h, cos_sin)
            chain.append((k, v))
            h = layer.out(h, attend(q, teacher, chain, layer.scale, layer.window))
        out.append(h)
        r = later(h, 1)
    return out


def attend(q: torch.Tensor, teacher: Rows, chain: Sequence[Rows], scale: float, window: int | None) -> torch.Tensor:
    """Attention of stream s = len(chain): over the teacher's rows up to i-s, and one row of each stream so far."""
    batch, heads, length, size = q.shape
    groups, s = teacher[0].shape[1], len(chain)
    q = q.view(batch, groups, heads // groups, length, size)
    position = torch.arange(length, device=q.device)
    distance = position[:, None] - position[None]
    seen = distance >= s
    if window is not None:
        seen &= distance < window
    far = (q.flatten(2, 3) @ teacher[0].transpose(-1, -2)).view(*q.shape[:4], length).float() * scale
    scores = [far.masked_fill(~seen, -torch.inf)]
    for back, (k, _) in zip(reversed(range(s)), chain, strict=True):
        near = (q * later(k, back)[:, :, None]).sum(-1, keepdim=True).float() * scale
        scores.append(
            near.masked_fill((position < back)[:, None] | (window is not None and back >= window), -torch.inf)
        )
    weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1).to(q.dtype)
    mixed = (weights[..., :length].flatten(2, 3) @ teacher[1]).view(q.shape)
    for t, (back, (_, v)) in enumerate(zip(reversed(range(s)), chain, strict=True)):
        mixed = mixed + weights[..., length + t, None] * later(v, back)[:, :, None]
    return mixed.view(batch, heads, length, size)


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
