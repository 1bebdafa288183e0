"""Who drafts and how far, or nobody: whatever promises the most tokens per second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

import mlx.core as mx

from mlx_skipspec.cost_files import costs_for
from mlx_skipspec.costs import Costs
from mlx_skipspec.drafters.protocol import NOTHING, Drafter
from mlx_skipspec.kv import KV
from mlx_skipspec.sources import Source, source_of
from mlx_skipspec.target import Target

PATIENCE = 16, 512  # rounds after which what was not done is tried again: at first, and at most
SURPRISE = 1.2  # observed over expected seconds, or the reverse, above which a trial is repeated


class Running:
    """The median of the last few values, so that a moment in which the machine stood still counts little."""

    def __init__(self, start: float) -> None:
        self._last = deque([start] * 3, maxlen=15)  # so much the calibration is trusted
        self.value = start

    def add(self, value: float) -> None:
        self._last.append(value)
        self.value = median(self._last)


class Choice:
    """A thing to do in a round: plain decoding, or drafting with one source."""

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self.name = source.drafter.name if source else "plain"
        self.extra = Running(0.0)  # seconds a drafted token takes more than was measured
        self.waited, self.patience, self.on_trial = 0, PATIENCE[0], False

    def take(self, on_trial: bool) -> None:
        self.patience = min(max(2 * self.patience, PATIENCE[0]), PATIENCE[1]) if on_trial else PATIENCE[0]
        self.waited, self.on_trial = 0, on_trial

    def surprised(self) -> None:
        """The round went otherwise than thought; if it was a trial, it is repeated."""
        if self.on_trial:
            self.patience = 1


class Paced:
    """Several drafters as one: each round the source and length that promise the most tokens per second, or none.

    A round with k drafted tokens emits E(k) = 1 + α_1 + α_1·α_2 + … tokens (Leviathan et al., 2023) and takes k draft
    steps and a pass of k + 1 rows. Costs are measured once per machine (cost_files.py) and corrected by how long
    rounds take: plain ones against the prediction, drafted ones against the prediction and plain ones, so a machine
    that gets slower as a whole changes no decision. α_i, the acceptance given all before, is learned from every
    verified guess, and from lookup's unverified ones. What was not done for long is tried once, at growing intervals,
    and again at once if the trial went otherwise than thought.

    Its guesses depend on a clock, so the third law of drafters does not bind it; the fourth does: no output changes.

    Args:
        drafters: of equally promising ones the first guesses.
        costs: None to get them from the cache of this machine, or measure them, when a target is known.
        recalibrate: measure them in any case.
        explain: hears a line whenever the decision changes.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: Costs | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        recalibrate: bool = False,
        explain: Callable[[str], None] | None = None,
    ) -> None:
        self.drafters, self.clock, self.recalibrate, self.explain = tuple(drafters), clock, recalibrate, explain
        self._costs = costs
        self._plain = Choice()
        self._choices = [Choice(source_of(drafter)) for drafter in drafters]
        self._slower = Running(1.0)  # plain rounds, against what was measured
        self._taken, self._drafted, self._length = self._plain, 0, 0
        self._started: float | None = None
        self._said: tuple[str, int] | None = None
        self.name = drafters[0].name

    def calibrate(self, target: Target) -> None:
        """Have the costs ready, so that no text waits for them."""
        if self._costs is None:
            self._costs = costs_for(target, self.drafters, self.recalibrate)

    def begin(self, target: Target, kv: KV) -> None:
        """A new text; what was learned of the machine and the drafters stays."""
        self.calibrate(target)
        self._started = self._said = None
        for choice in self._choices:
            assert choice.source is not None
            choice.source.begin()
            choice.source.drafter.begin(target, kv)

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        self._started = self.clock()
        choice, k = self._decide(context, k)
        guess = choice.source.guess(context, k) if choice.source else NOTHING
        self._taken, self._drafted, self._length = choice, guess.size, len(context)
        if guess.size:
            self.name = choice.name
        return guess

    def observe(self, hidden: mx.array) -> None:
        if self._started is not None:
            self._correct(self.clock() - self._started)
            self._started = None
            if self._drafted and hidden.shape[1] > 1:
                self._taken.surprised()
            for choice in self._choices:
                assert choice.source is not None
                choice.source.hear(self._drafted if choice is self._taken else 0, hidden.shape[1] - 1)
        for drafter in self.drafters:
            drafter.observe(hidden)

    def _decide(self, context: Sequence[int], most: int) -> tuple[Choice, int]:
        """What this round is for, and how many tokens to guess."""
        length = len(context)
        plain = 1 / self._seconds(self._plain, 0, length)
        options = [(plain, self._plain, 0)]
        for choice in self._choices:
            assert choice.source is not None
            if kinds := choice.source.offer(context, most):
                shares = [choice.source.acceptance.of(kind) for kind in kinds]
                options.append(self._best(choice, shares, length))
        rate, best, k = max(options, key=lambda option: option[0])
        # A copy that pays is no moment for trials, which would cost many tokens then.
        on_trial, copying = False, best.source is not None and best.source.free
        for other_rate, other, other_k in options:
            other.waited += 1
            known = other.source is not None and other.source.free
            if not (other is best or on_trial or copying or known) and other.waited > other.patience:
                rate, best, k, on_trial = other_rate, other, other_k, True
        best.take(on_trial)
        if self.explain and (best.name, k) != self._said:
            self._said = best.name, k
            per_second = 1 / self._slower.value
            what = f"{best.name} {k}: {rate * per_second:.1f} tok/s expected, plain" if k else "plain:"
            why = " (a trial)" if on_trial else ""
            self.explain(f"pace at token {length}: {what} {plain * per_second:.1f} tok/s{why}")
        return best, k

    def _best(self, choice: Choice, shares: Sequence[float], length: int) -> tuple[float, Choice, int]:
        """The best rate of 1 … len(shares) drafted tokens, and how many that are."""
        emitted, reached, best = 1.0, 1.0, (0.0, choice, 0)
        for k, share in enumerate(shares, 1):
            reached *= share
            emitted += reached
            if (rate := emitted / self._seconds(choice, k, length)) > best[0]:
                best = rate, choice, k
        return best

    def _seconds(self, choice: Choice, k: int, length: int) -> float:
        """A round that drafts k tokens behind `length`, on this machine as it was when costs were measured."""
        assert self._costs is not None
        plain = self._costs.verify(1, length)
        if not k:
            return plain
        token = self._costs.draft(choice.name, length) + choice.extra.value
        return max(self._costs.verify(k + 1, length) + k * token, plain)

    def _correct(self, seconds: float) -> None:
        """Compare the last round's time with the predicted one."""
        choice, k = self._taken, self._drafted
        expected = self._slower.value * self._seconds(choice, k, self._length)
        if not 1 / SURPRISE < seconds / expected < SURPRISE:
            choice.surprised()
        if choice is self._plain:
            self._slower.add(self._slower.value * seconds / expected)
        elif k:
            choice.extra.add(choice.extra.value + (seconds - expected) / (k * self._slower.value))
