"""Lookup: its guess costs nothing to make."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import mlx.core as mx

from mlx_skipspec.acceptance import Acceptance, Kind
from mlx_skipspec.drafters import PromptLookup
from mlx_skipspec.prospect import Prospect
from mlx_skipspec.sources.protocol import DEEP, Guess, Source

LUCK = 2.0  # as in Acceptance; by benchmarks/LOG.md, "Luck of a text"


class Copying:
    """Lookup: its guess costs nothing to make, so it is made every round and scored when the text has come that far."""

    free = True

    def __init__(self, drafter: PromptLookup) -> None:
        self.drafter: PromptLookup = drafter
        self.acceptance = Acceptance(_PRIORS, LUCK)
        self.begin()

    def follow(self, earlier: Source) -> None:
        self.acceptance = earlier.acceptance

    def begin(self) -> None:
        self.acceptance.begin()
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

    def promise(self, prospect: Prospect) -> tuple[float, int]:
        return prospect.best()

    def guesses(self, context: Sequence[int], prospect: Prospect, k: int) -> Iterator[Guess]:
        yield Guess(mx.array(self._offered[:k], dtype=mx.uint32), k)

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
