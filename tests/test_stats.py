"""One histogram, and every figure that follows from it, against figures counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_skipspec.stats import Stats
from mlx_skipspec.step import Step

# The first token, two rounds of `skip`, two of `lookup` and a stop inside a guess that was right to its end.
STEPS = [
    Step((1,)),
    Step((2, 3, 4, 5), drafted=3, accepted=3, source="skip"),
    Step((6, 7), drafted=3, accepted=1, source="skip"),
    Step((8,), drafted=1, accepted=0, source="lookup"),
    Step((9, 10, 11), drafted=2, accepted=2, source="lookup"),
    Step((12, 13), drafted=3, accepted=3, source="skip", finish_reason="stop"),
]


def test_counts_are_those_of_the_steps() -> None:
    stats = Stats.of(STEPS)
    assert (stats.passes, stats.tokens, stats.drafted, stats.accepted) == (6, 13, 12, 9)
    assert stats.tokens_per_pass == 13 / 6


def test_accepted_of_drafted_is_not_accepted_of_emitted() -> None:
    stats = Stats.of(STEPS)
    assert stats.acceptance == 9 / 12
    # The guess behind the stop was good and was not emitted: 3 + 1 + 0 + 2 + 2 tokens came from drafts.
    assert stats.from_draft == 8
    assert stats.share_from_draft == 8 / 13


def test_acceptance_at_a_position_is_of_the_rounds_that_got_there() -> None:
    stats = Stats.of(STEPS)
    # First: five rounds drafted, four right. Second: of these four, all drafted a second token, three right.
    # Third: two of the three drafted a third token, both right.
    assert stats.acceptance_by_position() == [4 / 5, 3 / 4, 2 / 2]
    assert stats.acceptance_by_position("skip") == [3 / 3, 2 / 3, 2 / 2]
    assert stats.acceptance_by_position("lookup") == [1 / 2, 1 / 1]
    assert stats.acceptance_by_position("nobody") == []


def test_a_position_no_round_got_to_has_no_acceptance() -> None:
    assert Stats.of([Step((1,), drafted=3, accepted=0, source="skip")]).acceptance_by_position() == [0.0, None, None]


def test_a_round_that_drafted_less_says_nothing_about_later_positions() -> None:
    steps = [Step((1, 2), drafted=1, accepted=1, source="skip"), Step((3,), drafted=2, accepted=0, source="skip")]
    assert Stats.of(steps).acceptance_by_position() == [1 / 2, None]


def test_every_source_has_its_own_figures() -> None:
    assert Stats.of(STEPS).by_source() == {
        "lookup": {"rounds": 2, "drafted": 3, "accepted": 2, "dropped": 0, "acceptance_by_position": [1 / 2, 1.0]},
        "skip": {"rounds": 3, "drafted": 9, "accepted": 7, "dropped": 0, "acceptance_by_position": [1.0, 2 / 3, 1.0]},
    }


def test_plain_decoding_has_one_token_a_pass_and_no_acceptance() -> None:
    stats = Stats.of([Step((1,)), Step((2,)), Step((3,), finish_reason="length")])
    assert (stats.tokens_per_pass, stats.acceptance, stats.share_from_draft) == (1.0, None, 0.0)
    assert (stats.acceptance_by_position(), stats.by_source()) == ([], {})


def test_nothing_run_is_no_division_by_zero() -> None:
    stats = Stats()
    assert (stats.passes, stats.tokens_per_pass, stats.acceptance, stats.share_from_draft) == (0, 0.0, None, None)


def test_two_runs_put_together_are_one_run() -> None:
    stats = Stats.of(STEPS[:3])
    stats.merge(Stats.of(STEPS[3:]))
    assert stats == Stats.of(STEPS)


@pytest.mark.parametrize(
    ("drafted", "accepted", "tokens", "guessed"), [(3, 3, 4, 3), (3, 1, 2, 1), (3, 3, 2, 2), (0, 0, 1, 0)]
)
def test_what_of_a_step_was_guessed(drafted: int, accepted: int, tokens: int, guessed: int) -> None:
    assert Step(tuple(range(tokens)), drafted, accepted).from_draft == guessed


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)).map(lambda pair: (pair[0], min(pair)))))
def test_the_positions_multiply_up_to_the_accepted_tokens(rounds: list[tuple[int, int]]) -> None:
    """E[accepted of a round of k] = α1 + α1α2 + …, when all rounds draft the same k."""
    k = max((drafted for drafted, _ in rounds), default=0)
    stats = Stats.of(Step(tuple(range(a + 1)), k, a, "skip") for _, a in rounds)
    product, expected = 1.0, 0.0
    for share in stats.acceptance_by_position():
        product *= share or 0.0
        expected += product
    assert stats.accepted == pytest.approx(expected * len(rounds))
