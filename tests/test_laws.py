"""The laws of drafters, for each of them."""

from __future__ import annotations

import mlx.core as mx
import pytest
import tiny
from drafters import DRAFTERS

from mlx_skipspec.drafters import FirstOf, LayerSkip, PromptLookup
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.sampling import GREEDY, Sampler

PROMPT = tiny.prompt(0)
TEXT = [*PROMPT, *range(3, 20)]


def ready(name: str, sampler: Sampler = GREEDY):
    """A drafter that has observed a target standing before the prompt's last token."""
    target = tiny.target()
    drafter, kv = DRAFTERS[name](target, sampler, TEXT), target.make_kv()
    drafter.begin(target, kv)
    _, states = target(mx.array(PROMPT[:-1]), kv)
    drafter.observe(states[-1])
    return drafter, kv


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_a_draft_has_at_most_k_tokens_of_the_vocabulary(name: str, k: int) -> None:
    drafter, _ = ready(name)
    guess = drafter.draft(PROMPT, k)
    assert guess.ndim == 1
    assert guess.size <= k
    assert all(0 <= token < tiny.VOCAB for token in guess.tolist())


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_cache_is_as_long_after_a_draft_as_before(name: str) -> None:
    drafter, kv = ready(name)
    drafter.draft(PROMPT, 4)
    assert [layer.offset for layer in kv.layers] == [len(PROMPT) - 1] * tiny.DEPTH


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("sampler", [GREEDY, Sampler(temperature=1.0, seed=9)], ids=["greedy", "T=1"])
def test_the_same_history_gives_the_same_guess(name: str, sampler: Sampler) -> None:
    drafter, _ = ready(name, sampler)
    again, _ = ready(name, sampler)
    first = drafter.draft(PROMPT, 4).tolist()
    assert drafter.draft(PROMPT, 4).tolist() == first
    assert again.draft(PROMPT, 4).tolist() == first


def test_first_of_names_the_drafter_that_guessed() -> None:
    target, kv = tiny.target(), tiny.target().make_kv()
    drafter = FirstOf(PromptLookup(), LayerSkip(SkipPlan.gap(tiny.DEPTH, 1, 1)))
    drafter.begin(target, kv)
    drafter.observe(mx.zeros((1, 1, target.hidden_size)))
    assert (drafter.draft([1, 2, 3, 1, 2], 2).size, drafter.name) == (2, "lookup")
    assert (drafter.draft([1, 2, 3, 4], 2).size, drafter.name) == (2, "skip")


def test_a_plan_for_another_depth_is_refused() -> None:
    target = tiny.target()
    with pytest.raises(SkipSpecError, match="9-layer model"):
        LayerSkip(SkipPlan.gap(9, 2, 2)).begin(target, target.make_kv())


def test_a_bridge_needs_a_contiguous_plan() -> None:
    from drafters import random_bridge

    with pytest.raises(SkipSpecError, match="contiguous"):
        LayerSkip(SkipPlan.periodic(6, 3), random_bridge(64))


def test_drawing_with_the_targets_key_makes_a_draft_of_all_layers_always_right() -> None:
    """The coupling in its purest form: with the target's own logits the draft draws the target's own token."""
    from mlx_skipspec.heads import DenseHead

    target, sampler = tiny.target(), Sampler(temperature=1.0, top_p=0.9, seed=11)
    logits, states = target(mx.array(PROMPT), target.make_kv())
    truth = sampler.choose(sampler.processed(logits[0, -1:]), len(PROMPT))
    assert DenseHead(target.logits, sampler)(states[-1][:, -1:], len(PROMPT))[0].item() == truth.item()
