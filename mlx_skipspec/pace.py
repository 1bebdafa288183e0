"""Who drafts and how far, or nobody: whatever promises the most tokens per second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import mlx.core as mx

from mlx_skipspec.cost_files import costs_for
from mlx_skipspec.costs import Costs
from mlx_skipspec.drafters.protocol import NOTHING, Drafter
from mlx_skipspec.kv import KV
from mlx_skipspec.prospect import Prospect
from mlx_skipspec.sources import Guess, Source, source_of
from mlx_skipspec.target import Target

SILENCE = 16  # plain rounds in a row after which the next is one too, and need not wait to hear what might be drafted
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
        self.begin()

    def begin(self) -> None:
        """Another text: what did not pay in the last one may pay now."""
        self.waited, self.patience, self.on_trial = 0, PATIENCE[0], False

    def follow(self, earlier: Choice) -> None:
        """Go on with what another one of this name has learned."""
        self.extra = earlier.extra
        if self.source is not None and earlier.source is not None:
            self.source.follow(earlier.source)

    def take(self, on_trial: bool) -> None:
        self.patience = min(max(2 * self.patience, PATIENCE[0]), PATIENCE[1]) if on_trial else PATIENCE[0]
        self.waited, self.on_trial = 0, on_trial

    def surprised(self) -> None:
        """The round went otherwise than thought; if it was a trial, it is repeated."""
        if self.on_trial:
            self.patience = 1


@dataclass(frozen=True)
class Option:
    """What a choice promises this round: tokens per second, by guessing about k tokens."""

    rate: float
    k: int
    choice: Choice
    prospect: Prospect | None = None  # None for plain decoding


class Paced:
    """Several drafters as one: each round the source and length that promise the most tokens per second, or none.

    A round with k drafted tokens emits E(k) = 1 + α_1 + α_1·α_2 + … tokens (Leviathan et al., 2023) and takes k draft
    steps and a pass of k + 1 rows. Costs are measured once per machine (cost_files.py) and corrected by how long
    rounds take: plain ones against the prediction, drafted ones against the prediction and plain ones, so a machine
    that gets slower as a whole changes no decision. α_i, the acceptance given all before, is learned from every
    verified guess, and from lookup's unverified ones. What was not done for long is tried once, at growing intervals,
    and again at once if the trial went otherwise than thought. The model's own layers say after every token how sure
    they are of it: they stop where going on does not pay, and what is too unlikely is dropped, not verified.

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
        self._known = {choice.name: choice for choice in self._choices}
        self._slower = Running(1.0)  # plain rounds, against what was measured
        self._taken, self._drafted, self._steps, self._length = self._plain, 0, 0, 0
        self._started: float | None = None
        self._said: tuple[str, int] | None = None
        self._in_a_row = 0  # rounds that were best spent plainly
        self.name, self.dropped = drafters[0].name, 0

    def follow(self, earlier: Paced) -> None:
        """Go on with what another one has learned: of the machine, and of drafters, which are known by name."""
        self._slower = earlier._slower
        for choice in self._choices:
            if (before := earlier._known.get(choice.name)) is not None:
                choice.follow(before)
        self._known = earlier._known | self._known  # with those that this one does not ask: the next one may

    def calibrate(self, target: Target) -> None:
        """Have the costs ready, so that no text waits for them."""
        if self._costs is None:
            self._costs = costs_for(target, self.drafters, self.recalibrate)

    @property
    def silent(self) -> bool:
        """So that a parked drafter costs nothing. An idea in such a round comes to nothing, but ends the silence."""
        return self._in_a_row >= SILENCE

    def begin(self, target: Target, kv: KV) -> None:
        """A new text. What was learned of the machine stays, and a part of what was learned of the drafters."""
        self.calibrate(target)
        self._started, self._said, self._in_a_row = None, None, 0
        for choice in self._choices:
            assert choice.source is not None
            choice.begin()
            choice.source.begin()
            choice.source.drafter.begin(target, kv)

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        *_, last = self.ideas(context, k)
        return last

    def ideas(self, context: Sequence[int], k: int) -> Iterator[mx.array]:
        self._started = self.clock()
        option, guesses = self._decide(context, k), iter((Guess(NOTHING, 0),))
        if option.choice.source is not None and option.prospect is not None:
            guesses = option.choice.source.guesses(context, option.prospect, option.k)
            self.name = option.choice.name
        for guess in guesses:
            self._taken, self._drafted, self._steps = option.choice, guess.tokens.size, guess.steps
            self._length, self.dropped = len(context), guess.steps - guess.tokens.size
            yield guess.tokens

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

    def _decide(self, context: Sequence[int], most: int) -> Option:
        """What this round is for."""
        length = len(context)
        plain = Option(1 / self._seconds(0, 0, length), 0, self._plain)
        options = [plain]
        for choice in self._choices:
            assert choice.source is not None
            if kinds := choice.source.offer(context, most):
                share = {kind: choice.source.acceptance.of(kind) for kind in set(kinds)}
                prospect = self._prospect(choice, [share[kind] for kind in kinds], length)
                options.append(Option(*choice.source.promise(prospect), choice, prospect))
        best = max(options, key=lambda option: option.rate)
        rate, taken = best.rate, best
        # A copy that pays is no moment for trials, which would cost many tokens then.
        copying = best.choice.source is not None and best.choice.source.free
        for other in options:
            other.choice.waited += 1
            known = other.choice.source is not None and other.choice.source.free
            overdue = other.choice.waited > other.choice.patience
            if overdue and not (other is best or taken is not best or copying or known):
                taken = other
        silent = self.silent
        if best is not plain:
            self._in_a_row = 0
        elif taken is plain:
            self._in_a_row += 1
        else:  # speak for this trial only
            self._in_a_row = min(self._in_a_row, SILENCE - 1)
        if silent:
            taken = best = plain
        taken.choice.take(on_trial=taken is not best)
        if self.explain and (taken.choice.name, taken.k) != self._said:
            self._said = taken.choice.name, taken.k
            self.explain(self._reason(taken, plain, length, on_trial=taken is not best))
        return replace(taken, prospect=taken.prospect and replace(taken.prospect, rate=rate))

    def _reason(self, taken: Option, plain: Option, length: int, on_trial: bool) -> str:
        now, name = 1 / self._slower.value, taken.choice.name
        what = f"{name} {taken.k}: {taken.rate * now:.1f} tok/s expected, plain" if taken.k else "plain:"
        return f"pace at token {length}: {what} {plain.rate * now:.1f} tok/s" + (" (a trial)" if on_trial else "")

    def _prospect(self, choice: Choice, shares: Sequence[float], length: int) -> Prospect:
        passes = [self._seconds(k, 0, length) for k in range(len(shares) + 1)]
        return Prospect(passes, self._step(choice, length), shares, rate=1 / passes[0])

    def _step(self, choice: Choice, length: int) -> float:
        """A draft step behind `length`."""
        assert self._costs is not None
        return max(self._costs.draft(choice.name, length) + choice.extra.value, 0.0)

    def _seconds(self, drafted: int, steps: int, length: int) -> float:
        """A pass over so many drafted tokens behind `length`, after so many draft steps of whoever was taken, on this
        machine as it was when costs were measured."""
        assert self._costs is not None
        seconds = max(self._costs.verify(drafted + 1, length), self._costs.verify(1, length))
        return seconds + (steps * self._step(self._taken, length) if steps else 0.0)

    def _correct(self, seconds: float) -> None:
        """Compare the last round's time with the predicted one."""
        choice, steps = self._taken, self._steps
        expected = self._slower.value * self._seconds(self._drafted, steps, self._length)
        if not 1 / SURPRISE < seconds / expected < SURPRISE:
            choice.surprised()
        if choice is self._plain:
            self._slower.add(self._slower.value * seconds / expected)
        elif steps:
            choice.extra.add(choice.extra.value + (seconds - expected) / (steps * self._slower.value))
