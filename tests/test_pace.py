"""Pace: drafts with whom and as far as pays, parks when nothing does, and comes back. By a clock of its own."""

from __future__ import annotations

import itertools

import mlx.core as mx
import pytest
import tiny
from pace_machine import FRESH, Guesser, Machine, costs, machine

from mlx_skipspec.costs import Costs
from mlx_skipspec.drafters import NOTHING, PromptLookup
from mlx_skipspec.pace import Paced


def test_a_useless_drafter_is_parked_at_almost_no_cost() -> None:
    told = machine(0.0, costs())
    assert told.rounds(300) > 0.97
    assert sum(k > 0 for k in told.lengths()) < 15


def test_a_dear_drafter_that_is_often_right_is_parked_as_well() -> None:
    assert machine(0.5, costs(step=0.9)).rounds(300) > 0.97


@pytest.mark.parametrize(("acceptance", "step", "best"), [(0.95, 0.1, 5), (0.6, 0.3, 1), (0.7, 0.05, 5), (0.2, 0.3, 0)])
def test_the_length_is_the_one_the_formula_says(acceptance: float, step: float, best: int) -> None:
    told = machine(acceptance, costs(step))
    told.rounds(600)
    rates = [sum(acceptance**i for i in range(k + 1)) / (1 + k * (step + 0.05)) for k in range(6)]
    assert rates[best] > 0.98 * max(rates)
    settled = told.lengths(100)
    assert sum(rates[k] for k in settled) / len(settled) > 0.95 * max(rates)


def test_of_two_drafters_the_better_one_for_the_time_drafts() -> None:
    class Other(Guesser):
        name = "lookup"

    for good, bad in ((0, 1), (1, 0)):
        drafters = [Guesser(FRESH, 0.9 if good == 0 else 0.1), Other(FRESH, 0.9 if good == 1 else 0.1)]
        told = Machine(FRESH, drafters, costs(step=0.05, row=0.05))
        told.rounds(200)
        who = [name for _, name, _ in told.drafted[50:]]
        assert who.count(drafters[good].name) > 10 * who.count(drafters[bad].name)


def test_it_tries_again_at_growing_intervals() -> None:
    told = machine(0.0, costs())
    told.rounds(1200)
    tries = [i for i, k in enumerate(told.lengths()) if k and i > 20]
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert 3 <= len(tries) <= 7
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(gaps))


def test_what_was_parked_in_one_text_is_tried_early_in_the_next() -> None:
    told = machine(0.0, costs(step=0.1))
    told.rounds(1500)
    told.pace.drafters[0].acceptance = 0.9
    told.pace.begin(tiny.target(), tiny.target().make_kv())
    since = len(told.drafted)
    told.rounds(60)
    assert sum(k > 0 for k in told.lengths(since)) > 30


def test_in_a_series_of_short_texts_a_useless_drafter_costs_little() -> None:
    told = machine(0.0, costs())
    rates = []
    for _ in range(12):
        told.pace.begin(tiny.target(), tiny.target().make_kv())
        rates.append(told.rounds(100))
    assert sum(rates[1:]) / len(rates[1:]) > 0.97


def test_parked_it_is_silent_and_the_first_idea_ends_that() -> None:
    told = machine(0.0, costs())
    silences = []
    for _ in range(400):
        silences.append(told.pace.silent)
        told.rounds(1)
    assert not any(k for silent, k in zip(silences, told.lengths(), strict=True) if silent)
    assert sum(silences) > 300
    for before, after in itertools.pairwise(range(400)):
        if silences[before] and not silences[after]:
            assert told.lengths()[after] > 0


def test_a_copy_is_used_though_nobody_had_an_idea_for_long() -> None:
    text = FRESH[:300] + FRESH[20:220]
    told = Machine(text, [PromptLookup()], costs(), start=50)
    told.to(320)
    assert sum(told.lengths()[:200]) == 0
    told.to(480)
    assert sum(told.lengths()[-20:]) > 60


def test_it_comes_back_when_the_drafter_gets_better() -> None:
    told = machine(0.0, costs())
    told.rounds(100)
    told.pace.drafters[0].acceptance = 1.0
    told.rounds(300)
    assert sum(told.lengths()[-50:]) > 150


def test_it_gives_up_soon_when_the_drafter_gets_worse() -> None:
    told = machine(1.0, costs())
    told.rounds(100)
    told.pace.drafters[0].acceptance = 0.0
    told.rounds(60)
    assert sum(told.lengths()[-20:]) <= 5


def test_a_long_context_shortens_drafts() -> None:
    text = list(range(40000))
    told = Machine(text, [Guesser(text, 0.8)], costs(step=0.05, row=0.02, long_row=0.4))
    told.rounds(60)
    short = told.lengths()[-20:]
    told.context = text[:1000]
    told.rounds(60)
    assert sum(short) > 2 * sum(told.lengths()[-20:]) > 0


@pytest.mark.parametrize("told_step", [0.02, 1.5])
def test_a_stale_calibration_of_the_drafter_heals(told_step: float) -> None:
    """Told that drafting is nearly free, it is dear; or the reverse."""
    real = costs(step=0.9 if told_step < 0.5 else 0.05)
    stale = machine(0.6, costs(step=told_step), real)
    stale.rounds(400)
    informed = machine(0.6, real)
    informed.rounds(400)
    assert stale.rounds(200) > 0.95 * informed.rounds(200)


def test_a_stale_calibration_of_the_target_heals() -> None:
    """Plain passes were measured twice as dear as they are, so drafting seemed to pay."""
    real = costs(step=0.9, row=0.3)
    passes = tuple(2.0 if i == 0 else real.verify(i + 1, 0) for i in range(9))
    stale = machine(0.6, Costs((0, 1000), (passes, passes), real.draft_seconds), real)
    stale.rounds(200)
    assert stale.rounds(200) > 0.95


def test_rounds_in_which_the_machine_stood_still_change_nothing() -> None:
    told = machine(0.8, costs(step=0.1))
    told.rounds(100)
    for _ in range(20):
        told.slow = 50.0
        told.rounds(1)
        told.slow = 1.0
        told.rounds(5)
    assert sum(k < 2 for k in told.lengths(100)) <= 10  # plain rounds are tried now and then


def test_a_machine_that_gets_slower_as_a_whole_changes_no_decision() -> None:
    told = machine(0.0, costs())
    told.rounds(100)
    told.slow = 3.0
    told.rounds(100)
    assert sum(k > 0 for k in told.lengths(100)) <= 2


def copied_text() -> tuple[list[int], int, int]:
    """200 new tokens, 150 of them again, 300 new ones; and where copying starts and ends."""
    return FRESH[:200] + FRESH[20:170] + FRESH[200:500], 200, 350


def test_lookup_is_used_within_twenty_tokens_of_copying_and_dropped_as_soon() -> None:
    text, start, end = copied_text()
    told = Machine(text, [PromptLookup(), Guesser(text, 0.45)], costs(step=0.3), start=100)
    told.to(500)
    who = [(at, name) for at, name, _ in told.drafted]
    assert {name for at, name in who if start + 20 <= at < end} == {"lookup"}
    assert "lookup" not in {name for at, name in who if not start <= at < end + 20}
    assert sum(k for at, _, k in told.drafted if start + 20 <= at < end) > 100


def test_lookup_learns_from_the_text_without_being_tried() -> None:
    """Pairs that come again and go on otherwise: its guesses are wrong, and it knows before it has cost much."""
    text = [token for part in (0, 1) for i in range(0, 600, 2) for token in (i, i + 1, 2000 + 1000 * part + i)]
    told = Machine(text, [PromptLookup()], costs(row=0.3), start=900)
    assert told.rounds(600) > 0.98
    assert sum(k > 0 for k in told.lengths()) <= 10
    dear = Machine(text, [PromptLookup()], costs(row=2.0), start=900)
    dear.rounds(60)
    assert sum(dear.lengths()) == 0
    acceptance = dear.pace._choices[0].source.acceptance
    assert acceptance.of(((1, "once"), 0)) < 0.2


def test_a_change_of_decision_is_explained_with_both_rates() -> None:
    told = machine(0.9, costs())
    told.rounds(50)
    assert told.said[0].startswith("pace at token 1: guesser")
    assert "tok/s expected, plain 1.0 tok/s" in told.said[0]
    changes = [a != b for a, b in itertools.pairwise(told.lengths())]
    assert len(told.said) == 1 + sum(changes)


def test_a_trial_is_explained_as_one() -> None:
    told = machine(0.0, costs())
    told.rounds(100)
    assert any(line.endswith("(a trial)") for line in told.said)


def test_asked_for_nothing_it_says_nothing() -> None:
    assert machine(1.0, costs()).pace.draft([1], 0).tolist() == NOTHING.tolist()


def test_what_was_observed_before_the_first_draft_of_a_text_counts_for_nobody() -> None:
    told = machine(1.0, costs())
    told.pace.observe(mx.zeros((1, 3, 2)))
    assert told.pace._slower.value == 1.0


def test_without_costs_they_are_had_once_before_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("mlx_skipspec.pace.costs_for", lambda *given: asked.append(given) or costs())
    drafters, target = (PromptLookup(),), tiny.target()
    pace = Paced(drafters, recalibrate=True)
    for _ in range(2):
        pace.calibrate(target)
        pace.begin(target, target.make_kv())
    assert asked == [(target, drafters, True)]
