"""Pace: drafts as far as pays, parks when nothing does, and comes back."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
import tiny

from mlx_skipspec.drafters import NOTHING, FirstOf, PromptLookup
from mlx_skipspec.kv import KV
from mlx_skipspec.pace import Paced
from mlx_skipspec.target import Target


class Machine:
    """A drafter of given acceptance on a machine of given costs, and the clock that shows them."""

    name = "machine"

    def __init__(self, acceptance: float, step: float = 0.2, row: float = 0.05) -> None:
        self.acceptance, self.step, self.row, self.now = acceptance, step, row, 0.0
        self.random = np.random.default_rng(0)
        self.lengths: list[int] = []

    def clock(self) -> float:
        return self.now

    def begin(self, target: Target, kv: KV) -> None: ...

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        self.now += k * self.step
        return mx.zeros((k,), dtype=mx.uint32)

    def observe(self, hidden: mx.array) -> None: ...

    def rounds(self, paced: Paced, count: int, most: int = 5) -> float:
        """Tokens per second over `count` rounds."""
        started, tokens = self.now, 0
        for _ in range(count):
            drafted = paced.draft([1], most).size
            self.lengths.append(drafted)
            accepted = 0
            while accepted < drafted and self.random.random() < self.acceptance:
                accepted += 1
            self.now += 1 + drafted * self.row
            paced.observe(mx.zeros((1, accepted + 1, 2)))
            tokens += accepted + 1
        return tokens / (self.now - started)


def paced(machine: Machine) -> Paced:
    return Paced(machine, machine.clock)


def test_a_useless_drafter_is_parked_at_almost_no_cost() -> None:
    machine = Machine(acceptance=0.0)
    assert machine.rounds(paced(machine), 300) > 0.98
    assert sum(length > 0 for length in machine.lengths) < 30


def test_a_dear_drafter_that_is_often_right_is_parked_as_well() -> None:
    machine = Machine(acceptance=0.5, step=0.9)
    assert machine.rounds(paced(machine), 300) > 0.96


@pytest.mark.parametrize(("acceptance", "step", "best"), [(0.95, 0.1, 5), (0.6, 0.3, 1), (0.7, 0.05, 5), (0.2, 0.3, 0)])
def test_the_length_is_the_one_the_formula_says(acceptance: float, step: float, best: int) -> None:
    machine = Machine(acceptance, step)
    machine.rounds(paced(machine), 600)
    rates = [sum(acceptance**i for i in range(k + 1)) / (1 + k * (step + machine.row)) for k in range(6)]
    assert rates[best] > 0.98 * max(rates)
    settled = machine.lengths[100:]
    assert sum(rates[length] for length in settled) / len(settled) > 0.95 * max(rates)


def test_it_comes_back_when_the_drafter_gets_better() -> None:
    machine = Machine(acceptance=0.0)
    pace = paced(machine)
    machine.rounds(pace, 100)
    machine.acceptance, machine.lengths = 1.0, []
    machine.rounds(pace, 600)
    assert sum(machine.lengths[-50:]) > 100


def test_it_gives_up_soon_when_the_drafter_gets_worse() -> None:
    machine = Machine(acceptance=1.0)
    pace = paced(machine)
    machine.rounds(pace, 100)
    machine.acceptance, machine.lengths = 0.0, []
    machine.rounds(pace, 60)
    assert sum(machine.lengths[-20:]) <= 5


def test_rounds_in_which_another_drafter_guessed_are_not_counted() -> None:
    machine = Machine(acceptance=0.0)
    pace = paced(machine)
    both = FirstOf(PromptLookup(), pace)
    both.begin(tiny.target(), tiny.target().make_kv())
    before = [list(times) for times in pace._times.values()]
    assert both.draft([1, 2, 3, 1, 2], 2).size == 2
    machine.now += 1000
    both.observe(mx.zeros((1, 3, 2)))
    assert [list(times) for times in pace._times.values()] == before


def test_asked_for_nothing_it_says_nothing() -> None:
    machine = Machine(acceptance=1.0)
    assert paced(machine).draft([1], 0).tolist() == NOTHING.tolist()
