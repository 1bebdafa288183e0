"""Drafters as the pace sees them: what they could guess this round, how sure it is, and what became of it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import mlx.core as mx

from mlx_skipspec.acceptance import Acceptance, Kind
from mlx_skipspec.drafters import Drafter, PromptLookup

DEEP = 3  # draft positions from here on count as one


class Source(Protocol):
    """One drafter.

    Attributes:
        free: its guesses are known, and scored against the text, whether they are verified or not.
    """

    acceptance: Acceptance
    free: bool

    @property
    def drafter(self) -> Drafter: ...

    def begin(self) -> None:
        """A new text; what was learned stays."""

    def offer(self, context: Sequence[int], k: int) -> list[Kind]:
        """The kinds of the tokens it could guess now, at most k."""

    def guess(self, context: Sequence[int], k: int) -> mx.array:
        """The first k of them."""

    def hear(self, drafted: int, accepted: int) -> None:
        """How many of its tokens were verified, 0 if another or nobody guessed, and how many of these accepted."""


def source_of(drafter: Drafter) -> Source:
    return Copying(drafter) if isinstance(drafter, PromptLookup) else Computing(drafter)


class Computing:
    """A drafter that must be run to know its guess.

    How its last guess fared says how the next one will: on SmolLM2 with a (2,2) bridge, 600 positions of chat answers,
    the first token is right in 30 of 100 after a rejected one and in 50 after an accepted one. (The probability the
    target gave its last token says next to nothing: 43, 34, 45, 50, 47, 37 of 100 from the least sure to the surest.)
    """

    free = False

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.acceptance = Acceptance({"all": 0.5})
        self.begin()

    def begin(self) -> None:
        self._last = "unknown"

    def offer(self, context: Sequence[int], k: int) -> list[Kind]:
        return [("all", self._last, min(i, DEEP)) for i in range(k)]

    def guess(self, context: Sequence[int], k: int) -> mx.array:
        return self.drafter.draft(context, k)

    def hear(self, drafted: int, accepted: int) -> None:
        for i in range(min(drafted, accepted + 1)):
            self.acceptance.learn(("all", self._last, min(i, DEEP)), i < accepted)
        self._last = "unknown" if not drafted else "right" if accepted else "wrong"


class Copying:
    """Lookup: its guess costs nothing to make, so it is made every round and scored when the text has come that far."""

    free = True

    def __init__(self, drafter: PromptLookup) -> None:
        self.drafter: PromptLookup = drafter
        self.acceptance = Acceptance(_PRIORS)
        self.begin()

    def begin(self) -> None:
        self._offered: list[int] = []
        self._open: list[tuple[int, int, Kind]] = []  # place, token and kind of what is not scored yet

    def offer(self, context: Sequence[int], k: int) -> list[Kind]:
        self._score(context)
        found = self.drafter.propose(context, k)
        kinds: list[Kind] = [
            (_bucket(found.match + i, share, places), min(i, DEEP))
            for i, (share, places) in enumerate(zip(found.shares, found.places, strict=True))
        ]
        self._offered = found.tokens
        if not self._open:  # one guess at a time, or neighbours would be counted for the same token
            self._open = [(len(context) + i, *pair) for i, pair in enumerate(zip(found.tokens, kinds, strict=True))]
        return kinds

    def guess(self, context: Sequence[int], k: int) -> mx.array:
        return mx.array(self._offered[:k], dtype=mx.uint32)

    def hear(self, drafted: int, accepted: int) -> None: ...

    def _score(self, context: Sequence[int]) -> None:
        while self._open and self._open[0][0] < len(context):
            place, token, kind = self._open.pop(0)
            right = context[place] == token
            self.acceptance.learn(kind, right)
            if not right:
                self._open.clear()


# How often a copied token was right in 16 chat answers of SmolLM2, by length of the match and by whether its earlier
# places went on differently, there was but one, or all of several went on alike.
_PRIORS: dict[Hashable, float] = {
    **{(length, "apart"): 0.45 for length in (1, 2, 3)},
    **{(1, "once"): 0.65, (2, "once"): 0.8, (3, "once"): 0.8},
    **{(1, "alike"): 0.85, (2, "alike"): 0.95, (3, "alike"): 0.95},
}


def _bucket(match: int, share: float, places: int) -> tuple[int, str]:
    return min(max(match, 2) // 2, 3), "apart" if share < 1 else "once" if places == 1 else "alike"
