"""A drafter that says how sure it is: stopped where going on does not pay, dropped where verifying does not."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from drafters import PICKY, gap, ticks
from pace_machine import FRESH, WRONG, Guesser, Machine

from mlx_skipspec.costs import Costs
from mlx_skipspec.decode import decode
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.pace import Paced
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.sampling import GREEDY
from mlx_skipspec.stats import Stats

PLACES = 9000


class Told(LayerSkip):
    """Guesses a text that it knows, token by token right or wrong as `right` says, and as sure as `sure` says."""

    def __init__(self, text: Sequence[int], right: np.ndarray, sure: np.ndarray) -> None:
        super().__init__(SkipPlan.gap(tiny.DEPTH, 1, 1))
        self.text, self.right, self.sure = text, right, sure

    def tokens(self, context: Sequence[int], k: int) -> Generator[tuple[mx.array, mx.array], None, None]:
        for place in range(len(context), len(context) + k):
            token = self.text[place] if self.right[place] else WRONG
            yield mx.array([token]), mx.array([self.sure[place]], dtype=mx.float32)


def costs(step: float = 0.15, row: float = 0.12) -> Costs:
    passes = tuple(1 + row * i for i in range(9))
    return Costs((0, 1000), (passes, passes), {"skip": (step, step), "guesser": (step, step)})


def chances(mean: float, seed: int = 0) -> np.ndarray:
    """Half of them near 0, half near 1 or so: the kind of probabilities a bridge gives."""
    random = np.random.default_rng(seed)
    return np.where(random.random(PLACES) < 0.5, random.uniform(0, 0.3, PLACES), random.uniform(2 * mean - 0.4, 1))


def told(right: np.ndarray, sure: np.ndarray, prices: Costs | None = None) -> Machine:
    return Machine(FRESH, [Told(FRESH, right, sure)], prices or costs())


def drawn(chance: np.ndarray, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).random(PLACES) < chance


def looking(machine: Machine) -> Any:
    return machine.pace._choices[0].source


def test_it_is_faster_than_guessing_blindly_with_the_same_acceptance() -> None:
    chance = chances(0.45)
    seeing = told(drawn(chance), chance).rounds(1500)
    blind = Machine(FRESH, [Guesser(FRESH, float(chance.mean()))], costs()).rounds(1500)
    assert seeing > 1.04 * blind
    assert seeing > 1.1


def test_what_a_probability_means_is_learned() -> None:
    """It is sure where it is wrong, and the reverse."""
    chance = chances(0.45)
    machine = told(drawn(chance), 1 - chance)
    machine.rounds(300)
    assert machine.rounds(1000) > 1.05


def test_a_sure_but_useless_drafter_is_parked() -> None:
    assert told(np.zeros(PLACES, bool), np.full(PLACES, 0.95)).rounds(400) > 0.97


def test_a_useless_drafter_that_knows_it_costs_draft_steps_only() -> None:
    machine = told(np.zeros(PLACES, bool), np.full(PLACES, 0.02))
    assert machine.rounds(400) > 0.98
    assert sum(machine.lengths(50)) <= 3


def test_dropped_tokens_teach_too() -> None:
    """Only likely tokens are verified, and still the share it would have of all comes out right."""
    chance = chances(0.45)
    right = drawn(chance)
    machine = told(right, chance)
    estimates = []
    for _ in range(60):
        machine.rounds(20)
        estimates.append(looking(machine).acceptance.of(("all",)))
    assert np.mean(estimates[10:]) == pytest.approx(right.mean(), abs=0.08)


def test_the_host_does_not_look_where_the_verdict_is_known_anyway() -> None:
    machine = told(np.ones(PLACES, bool), np.full(PLACES, 0.5), costs(step=0.0, row=0.0))
    machine.rounds(30)
    assert [one.bucket for one in looking(machine)._drafted] == [None] * machine.most


def test_a_draft_that_is_stopped_leaves_the_cache_as_it_was() -> None:
    target = tiny.target()
    kv = target.make_kv()
    target.prefill(mx.array(tiny.prompt(0)), kv)
    drafter = gap(target, GREEDY)
    drafter.begin(target, kv)
    tokens = drafter.tokens([*tiny.prompt(0), 1], 4)
    for _ in range(2):
        token, probability = next(tokens)
        assert 0 < probability.item() <= 1
        assert 0 <= token.item() < target.vocab_size
    tokens.close()
    assert {layer.offset for layer in kv.layers} == {len(tiny.prompt(0))}


def test_between_two_ideas_the_cache_is_as_long_as_before_and_the_last_one_is_the_draft() -> None:
    target = tiny.target()
    kv = target.make_kv()
    target.prefill(mx.array(tiny.prompt(0)), kv)
    context = [*tiny.prompt(0), 1]
    ideas, draft = (
        Paced([gap(target, GREEDY)], PICKY, clock=ticks()),
        Paced([gap(target, GREEDY)], PICKY, clock=ticks()),
    )
    several = False
    for _ in range(12):
        for pace in (ideas, draft):
            pace.begin(target, kv)
        found = []
        for idea in ideas.ideas(context, 5):
            found.append(idea.tolist())
            assert {layer.offset for layer in kv.layers} == {len(context) - 1}
        assert found[-1] == draft.draft(context, 5).tolist()
        several |= len(found) > 1
        for pace in (ideas, draft):
            pace.observe(mx.zeros((1, 1, target.hidden_size)))
    assert several


def test_the_probability_is_the_softmax_of_the_token_it_goes_with() -> None:
    logits = mx.array([[0.0, 2.0, 1.0], [3.0, -mx.inf, 0.0]])
    tokens, shares = GREEDY.draw(logits, 0)
    assert tokens.tolist() == [1, 0]
    assert shares.tolist() == pytest.approx([np.exp(2) / (1 + np.exp(2) + np.e), 1 / (1 + np.exp(-3))])


def test_what_was_dropped_is_counted_and_changes_no_token() -> None:
    target = tiny.target()

    def run(drafter: Paced | None) -> tuple[list[int], Stats]:
        steps = list(decode(target, target.make_kv(), tiny.prompt(0), drafter=drafter, max_tokens=60))
        return [token for step in steps for token in step.tokens], Stats.of(steps)

    plain, _ = run(None)
    tokens, stats = run(Paced([gap(target, GREEDY)], PICKY, clock=ticks()))
    assert tokens == plain
    assert stats.by_source()["skip"]["dropped"] == stats.dropped["skip"] > 0
