"""How far to draft, or not at all: decided by the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import mlx.core as mx

from mlx_skipspec.drafters.protocol import NOTHING, Drafter
from mlx_skipspec.kv import KV
from mlx_skipspec.target import Target

DECAY = 0.95  # weight of what was learned, per round: the last twenty rounds count
STALE = 0.2  # weight below which a time is measured again: a lone round is for about thirty
PRIOR = (1.2, 2.0)  # accepted of tried, before anything was tried at a position


class Paced:
    """Lets a drafter guess as far as pays, which may be not at all.

    A round with k drafted tokens takes t(k) = t_0 + k·t_1 and emits E(k) = 1 + α_1 + α_1·α_2 + … tokens. t_0 and t_1
    come from the times of past rounds, α_i, the acceptance at draft position i given all before, from what became of
    past guesses; k maximises E(k)/t(k), and k = 0, plain decoding, is among the choices. (Leviathan et al., 2023, for
    E; the times are measured, since what several rows cost differs from machine to machine.)

    Its guesses depend on a clock, so the third law of drafters does not bind it; the fourth does: no output changes.
    """

    def __init__(self, drafter: Drafter, clock: Callable[[], float] = time.perf_counter) -> None:
        self.drafter, self.clock = drafter, clock
        self._times: dict[bool, list[float]] = {False: [0.0] * 3, True: [0.0] * 3}  # guessed: Σ weight, Σ k, Σ seconds
        self._fates: list[list[float]] = []  # for each position: accepted, tried
        self._started: float | None = None
        self._drafted = 0

    @property
    def name(self) -> str:
        return self.drafter.name

    def begin(self, target: Target, kv: KV) -> None:
        """A new text; what was learned of the machine and the drafter stays."""
        self._started = None
        self.drafter.begin(target, kv)

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        self._started = self.clock()
        k = self.length(k)
        guess = self.drafter.draft(context, k) if k else NOTHING
        self._drafted = guess.size
        return guess

    def observe(self, hidden: mx.array) -> None:
        if self._started is not None:  # else another drafter guessed, and the round says nothing about this one
            self._learn(self._drafted, hidden.shape[1] - 1, self.clock() - self._started)
            self._started = None
        self.drafter.observe(hidden)

    def length(self, most: int) -> int:
        """The k of 0 … most that promises the most tokens per second."""
        (plain, _, plain_seconds), (guessed, guessed_k, guessed_seconds) = self._times[False], self._times[True]
        if guessed < STALE:
            return min(most, 1)
        if plain < STALE:
            return 0
        t_0 = plain_seconds / plain
        t_1 = max(guessed_seconds / guessed - t_0, 0.0) / (guessed_k / guessed)
        emitted, reached, best, best_rate = 1.0, 1.0, 0, 1.0 / t_0
        for k in range(1, most + 1):
            reached *= self.acceptance(k - 1)
            emitted += reached
            if (rate := emitted / (t_0 + k * t_1)) > best_rate:
                best, best_rate = k, rate
        return best

    def acceptance(self, position: int) -> float:
        """α at a draft position; one never tried is taken to be like the one before."""
        known = self._fates[: position + 1] or [list(PRIOR)]
        accepted, tried = known[-1]
        return accepted / tried

    def _learn(self, drafted: int, accepted: int, seconds: float) -> None:
        for times in self._times.values():
            times[:] = [DECAY * value for value in times]
        sums = self._times[drafted > 0]
        sums[:] = [sums[0] + 1, sums[1] + drafted, sums[2] + seconds]
        for i in range(min(drafted, accepted + 1)):
            if i == len(self._fates):
                self._fates.append(list(PRIOR))
            fate = self._fates[i]
            fate[:] = [DECAY * fate[0] + (i < accepted), DECAY * fate[1] + 1]
