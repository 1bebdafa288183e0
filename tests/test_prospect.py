"""What a round is worth: by formulas anyone can check by hand."""

from __future__ import annotations

import itertools
import operator

import pytest

from mlx_skipspec.prospect import Prospect

PASSES = (1.0, 1.1, 1.2, 1.4)


def prospect(shares: tuple[float, ...] = (0.5, 0.5, 0.5), step: float = 0.2, rate: float = 1.0) -> Prospect:
    return Prospect(PASSES, step, shares, rate)


def test_blind_drafts_promise_the_formulas_rate() -> None:
    rates = [1.5 / 1.3, 1.75 / 1.6, 1.875 / 2.0]
    assert prospect().best() == (pytest.approx(max(rates)), 1)
    assert prospect((0.9, 0.9, 0.9)).best() == (pytest.approx((1 + 0.9 + 0.81 + 0.729) / 2.0), 3)


def test_looking_pays_the_row_only_for_tokens_worth_it() -> None:
    told = prospect()
    assert told.looking([(0.5, 0.9), (0.5, 0.05)]) == pytest.approx((1 + 0.45) / (1.0 + 0.2 + 0.05))
    assert told.looking([(1.0, 0.5)]) == pytest.approx(told.best()[0])
    assert told.looking([(1.0, 0.0)]) == pytest.approx(1 / 1.2)


def test_a_sure_token_is_drafted_on_and_an_unlikely_one_dropped() -> None:
    told = prospect((0.5, 0.6, 0.5))
    assert told.verdict([0.95]) is None
    assert told.verdict([0.45]) == 1
    assert told.verdict([0.02]) == 0
    assert told.verdict([0.95, 0.05]) == 1


def test_behind_the_last_token_there_is_no_going_on() -> None:
    assert prospect((1.0, 1.0, 1.0), step=0.0).verdict([1.0, 1.0, 1.0]) == 3


@pytest.mark.parametrize("rate", [0.83, 1.07, 1.31])
def test_the_verdict_is_the_best_that_could_be_done(rate: float) -> None:
    """Against every length there is, by tokens less what their seconds are worth."""
    told = prospect((0.6, 0.7, 0.4), step=0.1, rate=rate)
    for sure in itertools.product([0.02, 0.1, 0.3, 0.6, 0.9], repeat=2):
        reached = list(itertools.accumulate([*sure, *told.shares[2:]], operator.mul))
        worth = [sum(reached[:k]) - rate * (PASSES[k] + 0.1 * max(k - 2, 0)) for k in range(4)]
        best = worth.index(max(worth))
        assert told.verdict(sure) == (None if best > 2 else best)


def test_where_time_is_worth_more_less_is_verified() -> None:
    verdicts = [prospect((0.5, 0.5), rate=rate).verdict([0.3, 0.3]) for rate in (0.5, 2.0, 4.0)]
    assert verdicts == [2, 1, 0]
