"""What a step asks of the device is what mlx-lm's asks, and no more than drafting and agreeing need."""

from __future__ import annotations

from collections import Counter

import graph
import mlx.core as mx
import pytest
import tiny
from drafters import random_bridge

from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.passes import Passes
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.sampling import Sampler

LOGPROBS = Counter(LogSumExp=1, Subtract=1)  # which mlx-lm computes every step, and we where somebody reads them
AGREEMENT = Counter(Concatenate=2)  # the last token and the guess, to run; the guess and the choice, to read
LAYER = Counter(RMSNorm=2, Matmul=7, RoPE=2, SliceUpdate=2, Attention=1, Compiled=1, Add=2)
STEP = Counter(Gather=1, RMSNorm=1)  # the embedding, the final norm
BRIDGE = Counter(LayerNorm=2, Concatenate=1, Matmul=1, Add=1)
WIDE_BRIDGE = BRIDGE + Counter(Matmul=3, Compiled=1, Add=1)
CHOICE = Counter(Matmul=1, ArgReduce=1)
# The rows of the head, what they score, the best score and the smallest id that has it.
AMONG_ROWS = Counter(Gather=1, Matmul=1, Max=1, Equal=1, Select=1, Min=1)
HEADS = {
    "dense": CHOICE,
    # Centres and bias, the best of them, their members.
    "clusters": AMONG_ROWS + Counter(QuantizedMatmul=1, Add=1, ArgPartition=1, Gather=1),
    # Once a draft, whatever its length: the text's own rows behind the frequent ones.
    "subset": AMONG_ROWS + Counter(Concatenate=1),
}
DRAWN = 15  # log-probabilities, scaling, noise, its sum and a choice among sums: once a pass


def kernels(counts: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind, n in counts.items():
        if kind not in graph.VIEWS:
            found["Compiled" if kind.startswith("Compiled") else kind] += n
    return found


def times(n: int, counts: Counter[str]) -> Counter[str]:
    return Counter({kind: n * each for kind, each in counts.items()})


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_plain_step_is_mlx_lms_without_its_logprobs(family: str) -> None:
    target = tiny.target(family)
    assert kernels(graph.ours(target)) + LOGPROBS == kernels(graph.theirs(target))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("guessed", [1, 3])
def test_a_verify_is_mlx_lms_step_and_the_agreement(family: str, guessed: int) -> None:
    target = tiny.target(family)
    assert kernels(graph.ours(target, guessed)) + LOGPROBS == kernels(graph.theirs(target)) + AGREEMENT


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("rank", "bridge"), [(None, Counter()), (0, BRIDGE), (24, WIDE_BRIDGE)])
def test_a_draft_step_is_its_layers_its_bridge_and_its_head(kind: str, rank: int | None, bridge: Counter[str]) -> None:
    target = tiny.target()
    head = {"dense": None, **graph.random_heads(target)}[kind]
    made = None if rank is None else random_bridge(target.hidden_size, rank)
    mx.eval([] if made is None else made.parameters())
    found = graph.draft(target, LayerSkip(SkipPlan.gap(tiny.DEPTH, 2, 1), made, head))
    assert kernels(found) == times(3, LAYER) + STEP + bridge + HEADS[kind]


def test_drawing_costs_the_same_for_one_row_and_for_many() -> None:
    target, sampler = tiny.target(), Sampler(temperature=0.8)
    for guessed in (0, 3):
        passes = Passes(target, graph.filled(target), sampler)
        with graph.OnGpu() as device:
            drawn = device.count(passes.next(graph.CONTEXT, mx.array(graph.CONTEXT[:guessed], dtype=mx.uint32)).answer)
        assert graph.kernels(drawn) - graph.kernels(graph.ours(target, guessed)) == DRAWN
