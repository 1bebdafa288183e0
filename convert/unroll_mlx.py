"""Exact unrolled training, in MLX: the twin of `unroll_torch`, which says what a stream is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from mlx_skipspec.target import Target

Rows = tuple[mx.array, mx.array]  # keys and values, each (B, KV heads, L, head size)


def streams(
    bridge: Callable[[mx.array, mx.array], mx.array],
    target: Target,
    layers: Sequence[int],
    rows: Sequence[Rows],
    x: mx.array,
    last: mx.array,
    count: int,
) -> list[mx.array]:
    """Last hidden states (B, L, D) of streams 1 … count; stream s is meant from position s on.

    Args:
        bridge: over the gap, (x, r) -> y.
        layers, rows: those behind the gap, and the target's keys and values there.
        x, last: the target's hidden states in front of the gap and behind the last layer, (B, L, D).
    """
    out: list[mx.array] = []
    chains: list[list[Rows]] = [[] for _ in layers]
    r = later(last, 1)
    for _ in range(count):
        h = bridge(x, r)
        for i, teacher, chain in zip(layers, rows, chains, strict=True):
            block = target.block(i)
            q, k, v = block.rows(h)
            chain.append((k, v))
            h = block.finish(h, attend(q, teacher, chain, block.scale, target.args.windows[i]))
        out.append(h)
        r = later(h, 1)
    return out


def attend(q: mx.array, teacher: Rows, chain: Sequence[Rows], scale: float, window: int | None) -> mx.array:
    """Attention of stream s = len(chain): over the target's rows up to i-s, and one row of each stream so far."""
    batch, heads, length, size = q.shape
    groups, s = teacher[0].shape[1], len(chain)
    q = q.reshape(batch, groups, heads // groups, length, size)
    position = mx.arange(length)
    distance = position[:, None] - position[None]
    seen = distance >= s
    if window is not None:
        seen &= distance < window
    far = (q @ teacher[0][:, :, None].swapaxes(-1, -2)).astype(mx.float32) * scale
    scores = [mx.where(seen, far, -mx.inf)]
    for back, (k, _) in zip(reversed(range(s)), chain, strict=True):
        near = (q * later(k, back)[:, :, None]).sum(-1, keepdims=True).astype(mx.float32) * scale
        there = (position >= back)[:, None] & (window is None or back < window)
        scores.append(mx.where(there, near, -mx.inf))
    weights = mx.softmax(mx.concatenate(scores, axis=-1), axis=-1).astype(q.dtype)
    mixed = weights[..., :length] @ teacher[1][:, :, None]
    for t, (back, (_, v)) in enumerate(zip(reversed(range(s)), chain, strict=True)):
        mixed = mixed + weights[..., length + t, None] * later(v, back)[:, :, None]
    return mixed.reshape(batch, heads, length, size)


def later(h: mx.array, by: int) -> mx.array:
    """What stood at position i-by, for every i; zeros in front. Positions are the axis before the last."""
    return h if by == 0 else mx.pad(h, [(0, 0)] * (h.ndim - 2) + [(by, 0), (0, 0)])[..., : h.shape[-2], :]


def divergence(student: mx.array, teacher: mx.array, log_weight: mx.array | float = 0.0) -> tuple[mx.array, mx.array]:
    """KL(target ‖ student) + CE(student, the target's likeliest token), and whether both have the same likeliest.

    Args:
        student, teacher: logits over some rows of the head, (..., V'); softmax in fp32.
        log_weight: log of how many rows of the vocabulary each of them stands for, (V',).
    """
    best = teacher.argmax(-1)
    hit = student.argmax(-1) == best
    t, s = teacher.astype(mx.float32) + log_weight, student.astype(mx.float32) + log_weight
    p, q = t - mx.logsumexp(t, axis=-1, keepdims=True), s - mx.logsumexp(s, axis=-1, keepdims=True)
    kl = (mx.exp(p) * (p - q)).sum(-1)
    return kl - mx.take_along_axis(q, best[..., None], axis=-1)[..., 0], hit
