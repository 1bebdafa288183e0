"""What a round is worth: tokens it may bring against the seconds it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Prospect:
    """A round with one drafter.

    Attributes:
        passes: seconds of a target pass over 1, 2, … rows.
        step: seconds of a draft step.
        shares: how likely the 1st, 2nd, … guessed token is right, given all before, as long as nothing is known of it.
        rate: tokens a second is worth: what one can have elsewhere.
    """

    passes: Sequence[float]
    step: float
    shares: Sequence[float]
    rate: float

    def best(self) -> tuple[float, int]:
        """Tokens per second of drafting blindly, and how many tokens then: the maximum over k of
        (1 + α_1 + α_1·α_2 + …) / (t_pass(k + 1) + k·t_draft)."""
        emitted, reached, best = 1.0, 1.0, (0.0, 0)
        for k, share in enumerate(self.shares, 1):
            reached *= share
            emitted += reached
            best = max(best, (emitted / (self.passes[k] + k * self.step), k))
        return best

    def looking(self, sure: Sequence[tuple[float, float]]) -> float:
        """Tokens per second of drafting one token and verifying it only if that pays; `sure` says how often (adding up
        to 1) a token comes that is right with which probability."""
        row = self.passes[1] - self.passes[0]
        kept = [(often, right) for often, right in sure if right > self.rate * row]
        tokens = 1 + sum(often * right for often, right in kept)
        return tokens / (self.passes[0] + self.step + row * sum(often for often, _ in kept))

    def verdict(self, sure: Sequence[float]) -> int | None:
        """Tokens drafted so far are right with the probabilities `sure`: None to draft on, else how many to verify."""
        reached, gained, stop = 1.0, 0.0, (-self.rate * self.passes[0], 0)
        for k, share in enumerate(sure, 1):
            reached *= share
            gained += reached
            stop = max(stop, (gained - self.rate * self.passes[k], k))
        go_on, done = -inf, len(sure)
        for k, share in enumerate(self.shares[done:], done + 1):
            reached *= share
            gained += reached
            go_on = max(go_on, gained - self.rate * (self.passes[k] + (k - done) * self.step))
        return None if go_on > stop[0] else stop[1]
