"""A machine with a clock of its own, on which texts are told round by round."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import tiny

from mlx_skipspec.costs import Costs
from mlx_skipspec.decode import agree
from mlx_skipspec.drafters import Drafter
from mlx_skipspec.kv import KV
from mlx_skipspec.pace import Paced
from mlx_skipspec.target import Target

FRESH = list(range(1000, 9000))  # a text in which nothing comes twice
WRONG = 1 << 20


def costs(step: float = 0.2, row: float = 0.05, long_row: float | None = None) -> Costs:
    """Plain tokens take a second at any context, each more row `row`, at 1 000 tokens of context `long_row`."""
    passes = [tuple(1 + more * i for i in range(9)) for more in (row, long_row or row)]
    return Costs((0, 1000), (passes[0], passes[1]), {"guesser": (step, step), "lookup": (0.001, 0.001)})


class Guesser:
    """Knows the text, and each token it guesses is right with a given probability."""

    name, dropped = "guesser", 0

    def __init__(self, text: Sequence[int], acceptance: float) -> None:
        self.text, self.acceptance, self.random = text, acceptance, np.random.default_rng(0)

    def begin(self, target: Target, kv: KV) -> None: ...

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        at = len(context)
        right = self.random.random(k) < self.acceptance
        return mx.array([t if r else WRONG for t, r in zip(self.text[at : at + k], right, strict=True)])

    def observe(self, hidden: mx.array) -> None: ...


class Machine:
    """A text told round by round, on a machine whose real costs need not be those the pace was told."""

    def __init__(
        self,
        text: Sequence[int],
        drafters: Sequence[Drafter],
        told: Costs,
        real: Costs | None = None,
        start: int = 1,
        most: int = 5,
    ) -> None:
        self.text, self.real, self.most, self.now = list(text), real or told, most, 0.0
        self.said: list[str] = []
        self.pace = Paced(drafters, told, clock=lambda: self.now, explain=self.said.append)
        self.pace.begin(tiny.target(), tiny.target().make_kv())
        self.context = self.text[:start]
        self.drafted: list[tuple[int, str, int]] = []  # per round: place, who, how many
        self.slow = 1.0

    def rounds(self, count: int) -> float:
        """Tokens per second over so many rounds."""
        started, place = self.now, len(self.context)
        for _ in range(count):
            at = len(self.context)
            guess = self.pace.draft(self.context, self.most).tolist()
            self.drafted.append((at, self.pace.name if guess else "plain", len(guess)))
            seconds = self.real.verify(len(guess) + 1, at)
            if guess:
                seconds += len(guess) * self.real.draft(self.pace.name, at)
            self.now += self.slow * seconds
            accepted = agree(guess, self.text[at:])
            self.context += self.text[at : at + accepted + 1]
            self.pace.observe(mx.zeros((1, accepted + 1, 2)))
        return (len(self.context) - place) / (self.now - started)

    def to(self, place: int) -> None:
        while len(self.context) < place:
            self.rounds(1)

    def lengths(self, since: int = 0) -> list[int]:
        return [k for _, _, k in self.drafted[since:]]


def machine(acceptance: float, told: Costs, real: Costs | None = None, **options: int) -> Machine:
    return Machine(FRESH, [Guesser(FRESH, acceptance)], told, real, **options)
