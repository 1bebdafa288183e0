"""How likely a guessed token is right, from what became of the last ones like it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import pairwise

Kind = tuple[Hashable, ...]  # what a guessed token is like, the coarsest trait first, e.g. (bucket, draft position)

KEEP = 0.95  # weight of the past per token of its kind: the last twenty count
FADE = 0.98  # the same per token of its coarsest kind: what is not tried any more is forgotten, or it never would be
SURE = 0.97  # no luck makes a token likelier than that
TRUST = 4.0  # tokens of a kind that weigh as much as all that is known of the coarser kind


class Acceptance:
    """Running acceptance of guessed tokens, given that all before them in the guess were right.

    A kind nobody has seen is taken to be like the coarser kind it belongs to, the coarsest like `priors` say; each
    token seen moves its own kind and all coarser ones.

    Texts differ, and a kind may be too rare in one to show how. So with `luck` > 0 tokens of every kind are taken to be
    likelier right, or less likely, by the factor that all of this text were so far, in which `luck` tokens as expected
    are counted as well.
    """

    def __init__(self, priors: Mapping[Hashable, float], luck: float = 0.0) -> None:
        self.priors, self.luck = priors, luck
        self.begin()
        self._fates: dict[Kind, tuple[float, float, int]] = {}  # right, tried, and at which token of its coarsest kind
        self._tokens: dict[Hashable, int] = {}  # of each coarsest kind

    def fade(self, share: float) -> None:
        """Trust what was seen so far only so much: another text begins."""
        self._fates = {kind: (share * right, share * tried, at) for kind, (right, tried, at) in self._fates.items()}

    def begin(self) -> None:
        """Another text: no luck yet."""
        self._right = self._expected = self.luck

    def of(self, kind: Kind) -> float:
        usual = self._usual(kind)
        return min(usual * self._right / self._expected, max(usual, SURE)) if self.luck else usual

    def _usual(self, kind: Kind) -> float:
        share = self.priors[kind[0]]
        seen = [self._seen(kind[:depth]) for depth in range(1, len(kind) + 1)]
        # What a kind has seen is part of what the coarser one has, and must not speak twice.
        for (accepted, tried), (finer_accepted, finer_tried) in pairwise([*seen, (0.0, 0.0)]):
            others = max(tried - finer_tried, 0.0)
            share = (min(max(accepted - finer_accepted, 0.0), others) + TRUST * share) / (others + TRUST)
        return share

    def _seen(self, kind: Kind) -> tuple[float, float]:
        accepted, tried, since = self._fates.get(kind, (0.0, 0.0, 0))
        faded = FADE ** (self._tokens.get(kind[0], 0) - since)
        return faded * accepted, faded * tried

    def learn(self, kind: Kind, right: bool) -> None:
        self._expected = self.luck + KEEP * (self._expected - self.luck) + self._usual(kind)
        self._right = self.luck + KEEP * (self._right - self.luck) + right
        now = self._tokens[kind[0]] = self._tokens.get(kind[0], 0) + 1
        for depth in range(1, len(kind) + 1):
            accepted, tried, since = self._fates.get(kind[:depth], (0.0, 0.0, now - 1))
            keep = KEEP * FADE ** (now - 1 - since)
            self._fates[kind[:depth]] = keep * accepted + right, keep * tried + 1, now
