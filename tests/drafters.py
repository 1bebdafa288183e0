"""Every drafter there is, and two that exist to test the loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
from small_heads import small_head

from mlx_skipspec.costs import Costs
from mlx_skipspec.drafters import NOTHING, Drafter, FirstOf, LayerSkip, NoDraft, PromptLookup
from mlx_skipspec.hvc import HVC
from mlx_skipspec.kv import KV
from mlx_skipspec.pace import Paced
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.sampling import Sampler
from mlx_skipspec.target import Target


class Liar:
    """Random guesses of random lengths, the same for the same history."""

    name, dropped = "liar", 0

    def begin(self, target: Target, kv: KV) -> None:
        self.vocab_size = target.vocab_size

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        random = np.random.default_rng([len(context), *context[-4:]])
        return mx.array(random.integers(0, self.vocab_size, random.integers(0, k + 1)), dtype=mx.uint32)

    def observe(self, hidden: mx.array) -> None: ...


class Oracle:
    """Knows the text beforehand and is always right."""

    name, dropped = "oracle", 0

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)

    def begin(self, target: Target, kv: KV) -> None: ...

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        assert self.text[: len(context)] == list(context)
        return mx.array(self.text[len(context) : len(context) + k], dtype=mx.uint32)

    def observe(self, hidden: mx.array) -> None: ...


def random_bridge(hidden_size: int, rank: int = 0) -> HVC:
    bridge = HVC(hidden_size, rank)
    bridge.proj.weight = 0.05 * mx.random.normal(bridge.proj.weight.shape, key=mx.random.key(5))
    if rank:
        bridge.down.weight = 0.05 * mx.random.normal(bridge.down.weight.shape, key=mx.random.key(6))
    return bridge


def ticks() -> Callable[[], float]:
    """A clock for Paced that makes its guesses the same every time: each look at it takes a second."""
    return itertools.count(1.0).__next__


# Drafting always looks worth its while, at every length.
CHEAP = Costs((0, 100), ((1.0,) * 8, (1.0,) * 8), dict.fromkeys(("lookup", "skip", "liar"), (0.01, 0.01)))
# Drafting is free and rows are dear, so that much of what is drafted is dropped.
PICKY = Costs((0, 100), (tuple(1 + 0.3 * i for i in range(8)),) * 2, {"skip": (0.0, 0.0)})
# Nothing pays, so that the pace is silent but for its trials.
DEAR = Costs((0, 100), (tuple(1 + 3.0 * i for i in range(8)),) * 2, {"skip": (2.0, 2.0), "lookup": (0.0, 0.0)})


class Parked(Paced):
    """A pace that believes what it was told, so that nothing surprises it into more trials."""

    def _correct(self, seconds: float) -> None: ...


def gap(target: Target, sampler: Sampler) -> LayerSkip:
    return LayerSkip(SkipPlan.gap(target.depth, 2, 2), sampler=sampler)


DRAFTERS: dict[str, Callable[[Target, Sampler, Sequence[int]], Drafter]] = {
    "none": lambda target, sampler, text: NoDraft(),
    "gap": lambda target, sampler, text: gap(target, sampler),
    "gap+hvc": lambda target, sampler, text: LayerSkip(
        SkipPlan.gap(target.depth, 2, 2), random_bridge(target.hidden_size), sampler=sampler
    ),
    "gap+mlp": lambda target, sampler, text: LayerSkip(
        SkipPlan.gap(target.depth, 1, 1), random_bridge(target.hidden_size, rank=24), sampler=sampler
    ),
    "early exit": lambda target, sampler, text: LayerSkip(SkipPlan.early_exit(target.depth, 4), sampler=sampler),
    "late start": lambda target, sampler, text: LayerSkip(SkipPlan.late_start(target.depth, 4), sampler=sampler),
    "periodic": lambda target, sampler, text: LayerSkip(SkipPlan.periodic(target.depth, 3), sampler=sampler),
    "masks": lambda target, sampler, text: LayerSkip(
        SkipPlan.masks(target.depth, attention=(0, 1, 5), mlp=(0, 2, 3, 5)), sampler=sampler
    ),
    **{
        f"gap+{kind}": lambda target, sampler, text, kind=kind: LayerSkip(
            SkipPlan.gap(target.depth, 2, 2), head=small_head(kind, target, sampler), sampler=sampler
        )
        for kind in ("clusters", "subset", "ann")
    },
    "lookup": lambda target, sampler, text: PromptLookup(),
    "first-of": lambda target, sampler, text: FirstOf(PromptLookup(), gap(target, sampler)),
    "paced": lambda target, sampler, text: Paced([PromptLookup(), gap(target, sampler)], CHEAP, clock=ticks()),
    "paced, picky": lambda target, sampler, text: Paced([gap(target, sampler)], PICKY, clock=ticks()),
    "paced, parked": lambda target, sampler, text: Parked([PromptLookup(), gap(target, sampler)], DEAR),
    "paced liar": lambda target, sampler, text: Paced([Liar(), PromptLookup()], CHEAP, clock=ticks()),
    "liar": lambda target, sampler, text: Liar(),
    "oracle": lambda target, sampler, text: Oracle(text),
}
__all__ = ["DRAFTERS", "NOTHING", "Liar", "Oracle", "random_bridge"]
