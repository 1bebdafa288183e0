"""Unrolled training trains what will run: stream s is the s-th step of a real draft chain."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import tiny
from drafters import random_bridge

from mlx_skipspec.convert.unroll_mlx import divergence, streams
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.target import Target

LENGTH, STREAMS = 20, 4
WINDOWS = {"sliding_window": 6}


def features(
    target: Target, plan: SkipPlan, ids: list[int]
) -> tuple[mx.array, list[tuple[mx.array, mx.array]], mx.array]:
    kv = target.make_kv()
    x = target.run(target.embed(mx.array(ids)), plan.before, kv)
    h = target.run(x, plan.skipped, kv)
    rows = []
    for i in plan.after:
        rows.append(target.block(i).rows(h)[1:])
        h = target.run(h, [i], kv)
    return x, rows, h


@pytest.mark.parametrize("rank", [0, 16])
@pytest.mark.parametrize("cut", [(1, 1), (2, 2), (0, 3), (3, 0)])
@pytest.mark.parametrize(
    ("family", "changes"), [("llama", {}), ("mistral", {}), ("mistral", WINDOWS), ("qwen3", {})], ids=str
)
def test_stream_s_is_the_sth_step_of_every_real_chain(
    family: str, changes: dict[str, int], cut: tuple[int, int], rank: int
) -> None:
    target, plan = tiny.target(family, **changes), SkipPlan.gap(tiny.DEPTH, *cut)
    bridge = random_bridge(target.hidden_size, rank=rank)
    ids = np.random.default_rng(5).integers(3, tiny.VOCAB, LENGTH).tolist()
    x, rows, last = features(target, plan, ids)
    ours = streams(bridge, target, list(plan.after), rows, x, last, STREAMS)
    for begin in range(1, LENGTH - STREAMS):
        kv = target.make_kv()
        drafter = LayerSkip(plan, bridge)
        drafter.begin(target, kv)
        _, states = target(mx.array(ids[:begin]), kv)
        drafter.observe(states[-1])
        r = drafter.r
        for s in range(1, STREAMS + 1):
            at = begin + s - 1
            r = drafter.step(mx.array(ids[at : at + 1]), r)
            assert mx.abs(r[0, 0] - ours[s - 1][0, at]).max().item() < 1e-4, (begin, s)


def test_the_loss_is_kl_and_cross_entropy() -> None:
    random = np.random.default_rng(0)
    student, teacher = random.normal(size=(2, 3, 5, 11)) * 3
    loss, hit = divergence(mx.array(student), mx.array(teacher))

    def log_softmax(z: np.ndarray) -> np.ndarray:
        return z - np.log(np.exp(z).sum(-1, keepdims=True))

    p, q = log_softmax(teacher), log_softmax(student)
    best = teacher.argmax(-1)
    want = (np.exp(p) * (p - q)).sum(-1) - np.take_along_axis(q, best[..., None], -1)[..., 0]
    np.testing.assert_allclose(np.array(loss), want, rtol=1e-5)
    assert (np.array(hit) == (student.argmax(-1) == best)).all()


def test_a_row_that_stands_for_several_counts_for_several() -> None:
    """Three rows alike, or one of them with the weight of three: the same distributions, so the same loss."""
    student, teacher = np.random.default_rng(1).normal(size=(2, 4, 6)) * 2
    both = np.stack([student, teacher])
    both[:, :, -1] = both.min(-1)  # never the likeliest
    thrice = np.concatenate([both, both[:, :, -1:], both[:, :, -1:]], axis=-1)
    weight = np.array([0.0] * 5 + [np.log(3)])
    one, _ = divergence(mx.array(both[0]), mx.array(both[1]), mx.array(weight))
    three, _ = divergence(mx.array(thrice[0]), mx.array(thrice[1]))
    np.testing.assert_allclose(np.array(one), np.array(three), rtol=1e-4)
