"""Passes of the target: first built, then queued on the device, at last read by the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx

from mlx_skipspec.drafters import NOTHING
from mlx_skipspec.kv import KV
from mlx_skipspec.sampling import Sampler, normalised
from mlx_skipspec.target import Target

BEGIN = 8  # an idle device gets the first of so many parts of a pass before the host has gone through the others


@dataclass(frozen=True)
class Round:
    """One pass over the last token and a guess of n tokens, lazy until queued."""

    drafted: int
    answer: mx.array  # (2n + 1,): the guess and what the target chose, to be read at once
    truth: mx.array  # (n + 1,)
    logprobs: mx.array  # (n + 1, V), computed only if somebody evaluates them
    hidden: mx.array  # (1, n + 1, D)
    begun: mx.array  # (1, n + 1, D), behind the first layers

    def queue(self, idle: bool = True) -> Round:
        """Queue it. Before MLX hands the device anything of a graph it goes through all of it, about 1 800 primitives
        or 5 ms on a CPU; an idle device begins earlier, a busy one would be interrupted."""
        if idle:
            mx.async_eval(self.begun)
        mx.async_eval(self.answer)
        return self

    def read(self) -> tuple[list[int], list[int]]:
        """Guess and truth on the host: the one read of a round."""
        answer = cast("list[int]", self.answer.tolist())
        return answer[: self.drafted], answer[self.drafted :]


@dataclass(frozen=True)
class Ahead:
    """A pass built before it is known to be wanted, and the cache as that pass leaves it.

    It costs nothing until it is taken. While it exists it holds rows, which keeps the device from appending to them in
    place: drop it before anything else is queued.
    """

    round: Round
    rows: list[Any]

    def take(self, kv: KV, idle: bool = True) -> Round:
        """Queue it; the cache stands behind it now."""
        kv.put_back(self.rows)
        return self.round.queue(idle)


class Passes:
    """Builds the passes of one text."""

    def __init__(self, target: Target, kv: KV, sampler: Sampler) -> None:
        self.target, self.kv, self.sampler = target, kv, sampler
        self.needs_history = bool(sampler.all_processors)

    def next(self, context: Sequence[int], guess: mx.array) -> Round:
        """The pass that verifies `guess` behind `context`, whose last token the cache does not hold yet."""
        return self._build(mx.array([context[-1]], dtype=mx.uint32), guess, len(context), self._history(context))

    def ahead(self, context: Sequence[int], current: Round) -> Ahead:
        """The plain pass after `current`, which is itself plain and follows `context`; the cache stays as it is."""
        history = self._history(context)
        if history is not None:
            history = mx.concatenate([history, current.truth])
        return self._aside(lambda: self._build(current.truth, NOTHING, len(context) + 1, history))

    def for_idea(self, context: Sequence[int], guess: mx.array) -> Ahead:
        """The pass that `next` would give, while the drafter may still think better of the guess; the cache stays."""
        return self._aside(lambda: self.next(context, guess))

    def _aside(self, build: Callable[[], Round]) -> Ahead:
        before = self.kv.hold()
        built = build()
        after = self.kv.hold()
        self.kv.put_back(before)
        return Ahead(built, after)

    def _build(self, last: mx.array, guess: mx.array, position: int, history: mx.array | None) -> Round:
        """`position` is the absolute one of the first token to be chosen, `history` every token in front of it."""
        logits, states = self.target(mx.concatenate([last, guess]) if guess.size else last, self.kv)
        if history is not None:
            history = mx.concatenate([history, guess])
        logits = self.sampler.processed(logits.squeeze(0), history)
        truth = self.sampler.choose(logits, position)
        answer = mx.concatenate([guess, truth]) if guess.size else truth
        return Round(guess.size, answer, truth, normalised(logits), states[-1], states[self.target.depth // BEGIN])

    def _history(self, context: Sequence[int]) -> mx.array | None:
        return mx.array(list(context), dtype=mx.uint32) if self.needs_history else None
