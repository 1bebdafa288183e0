"""A round is read once; a paced draft is looked at once a token at most. Nothing else makes the host wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import numpy as np
import pytest
import tiny
from drafters import CHEAP, gap, ticks
from small_heads import small_head

from mlx_skipspec.decode import decode
from mlx_skipspec.drafters import Drafter, FirstOf, LayerSkip, NoDraft, PromptLookup
from mlx_skipspec.pace import Paced
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.target import Target

PROMPT, TOKENS = tiny.prompt(0), 30
READS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__")


def skip(kind: str, target: Target, sampler: Sampler) -> LayerSkip:
    head = None if kind == "dense" else small_head(kind, target, sampler)
    return LayerSkip(SkipPlan.gap(target.depth, 2, 2), head=head, sampler=sampler)


def drafters(target: Target, sampler: Sampler) -> dict[str, Drafter]:
    kinds = ("dense", "clusters", "subset")
    return {
        "none": NoDraft(),
        "lookup": PromptLookup(),
        **{f"skip, {kind}": skip(kind, target, sampler) for kind in kinds},
        **{f"lookup or skip, {kind}": FirstOf(PromptLookup(), skip(kind, target, sampler)) for kind in kinds},
        "paced": Paced([PromptLookup(), gap(target, sampler)], CHEAP, clock=ticks()),
    }


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """How often the host has asked for numbers, waited for an evaluation, or queued one."""
    times = dict.fromkeys(("read", "eval", "async_eval"), 0)

    def counting(name: str, function, of: type = object):
        def wrapped(*args, **options):
            times[name] += isinstance(args[0], of) if args else 1
            return function(*args, **options)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in READS:
            patch.setattr(mx.array, name, counting("read", getattr(mx.array, name)))
        for name in ("eval", "async_eval"):
            patch.setattr(mx, name, counting(name, getattr(mx, name)))
        for name in ("array", "asarray"):  # numpy reads through a buffer
            patch.setattr(np, name, counting("read", getattr(np, name), of=mx.array))
        patch.setattr(mx, "synchronize", counting("eval", mx.synchronize))
        yield times


def test_every_way_of_reading_an_array_is_counted() -> None:
    x = mx.array(3)
    with counted() as times:
        x.item(), x.tolist(), bool(x), int(x), float(x), [0, 1, 2, 3][x], np.array(x)
        assert times["read"] == 7
        mx.eval(x + 1)
        assert times["eval"] == 1


@pytest.mark.parametrize("sampler", [GREEDY, Sampler(temperature=0.8, seed=3)], ids=["greedy", "T=0.8"])
@pytest.mark.parametrize("name", drafters(tiny.target(), GREEDY))
def test_a_round_is_read_once_and_its_draft_steps_and_pass_are_queued_as_they_are_built(
    name: str, sampler: Sampler
) -> None:
    target = tiny.target()
    drafter = drafters(target, sampler)[name]
    steps = decode(target, target.make_kv(), PROMPT, drafter=drafter, sampler=sampler, max_tokens=TOKENS)
    next(steps)  # the prompt is evaluated, and the first logits are asked whether they are numbers
    plain = isinstance(drafter, NoDraft)
    with counted() as times:
        rounds = drafted = computed = 0
        for step in steps:
            rounds += 1
            drafted += step.drafted
            computed += step.drafted + step.dropped if step.source == "skip" else 0
            # A pass for an idle device is queued in two parts. Plain decoding is one pass ahead of its reads.
            queued = 2 * rounds if not plain else min(rounds, TOKENS - 2)
            looked = times["read"] - rounds
            assert times == {"read": rounds + looked, "eval": 0, "async_eval": queued + computed}
            assert 0 <= looked <= (computed if isinstance(drafter, Paced) else 0)
    assert rounds > 1
    assert plain or drafted
