"""What the pace asks of a drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlx_skipspec.acceptance import Acceptance, Kind
from mlx_skipspec.drafters import Drafter
from mlx_skipspec.prospect import Prospect

DEEP = 3  # draft positions from here on count as one


@dataclass(frozen=True)
class Guess:
    """Tokens to verify, (n,), and how many were drafted to get them, at least n."""

    tokens: mx.array
    steps: int


class Source(Protocol):
    """One drafter.

    Attributes:
        free: its guesses are known, and scored against the text, whether they are verified or not.
    """

    acceptance: Acceptance
    free: bool

    @property
    def drafter(self) -> Drafter: ...

    def follow(self, earlier: Source) -> None:
        """Go on with what another one has learned, whose drafter has the same name."""

    def begin(self) -> None:
        """A new text: part of what was learned may not hold there."""

    def offer(self, context: Sequence[int], k: int) -> list[Kind]:
        """The kinds of the tokens it could guess now, at most k."""

    def promise(self, prospect: Prospect) -> tuple[float, int]:
        """Tokens per second if it guesses, and how many tokens that will be, about."""

    def guesses(self, context: Sequence[int], prospect: Prospect, k: int) -> Iterator[Guess]:
        """The first k of them. One that sees how sure it is may go further, or less far, and says what it has while
        the device drafts: then the last guess is the one that counts."""

    def hear(self, drafted: int, accepted: int) -> None:
        """How many of its tokens were verified, 0 if another or nobody guessed, and how many of these accepted."""
