"""What one round of the loop gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """The tokens one target pass emitted, and how the guess fared.

    `accepted` counts every guessed token that agreed with the target. It is stored, not derived from `tokens`, because
    a stop token may fall inside the guess: what agreed behind it is dropped from `tokens` and still was a good guess.

    Attributes:
        tokens: emitted token ids, at least one: the accepted part of the guess and the target's own next token.
        drafted: tokens guessed.
        accepted: length of the longest prefix on which guess and target agree, at most `drafted`.
        dropped: tokens drafted beside these and not verified, since they seemed too unlikely.
        source: name of the drafter at work, None when nothing was drafted.
        finish_reason: "stop" or "length" on the last step, else None.
        logprobs: (len(tokens), V) log-probabilities each token was chosen from, lazy; after processors.
    """

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    dropped: int = 0
    source: str | None = None
    finish_reason: str | None = None
    logprobs: Any = field(default=None, compare=False, repr=False)

    @property
    def from_draft(self) -> int:
        """How many of `tokens` were guessed; the rest (at most one) is the target's own."""
        return min(self.accepted, len(self.tokens))
