"""What a drafter is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx

from mlx_skipspec.kv import KV
from mlx_skipspec.target import Target


class Drafter(Protocol):
    """Guesses what the target will say next.

    Laws (tests/test_laws.py runs every drafter through them):
      1. `draft` returns between 0 and k token ids; none means "no idea".
      2. The cache has the same length after `draft` as before.
      3. The same history (and seed) gives the same guess.
      4. No guess can change the output, only the pace.
    """

    @property
    def name(self) -> str:
        """Who made the last guess, as statistics call it."""

    @property
    def dropped(self) -> int:
        """Tokens that were drafted for the last guess and are not in it, since they seemed too unlikely."""

    def begin(self, target: Target, kv: KV) -> None:
        """A new text starts; forget what was observed."""

    def draft(self, context: Sequence[int], k: int) -> mx.array:  # -> (n,), n <= k; stays lazy where it can
        """Guess what follows `context`, the prompt and every token emitted so far; one list, which only grows."""

    def observe(self, hidden: mx.array) -> None:  # (1, n, D)
        """Hear the target's last-layer states at the positions just verified, the last one that of the newest state."""


@runtime_checkable
class Thinker(Protocol):
    """A drafter whose guess takes shape while the device drafts, and the host may prepare for what it has so far."""

    @property
    def silent(self) -> bool:
        """The next draft will be empty whatever the next token is, so nobody has to wait for it."""

    def ideas(self, context: Sequence[int], k: int) -> Iterator[mx.array]:
        """Guesses, each in place of the one before; the last one is what `draft` would have returned.

        Before each one the cache has the same length as before the first.
        """


@dataclass(frozen=True)
class OneIdea:
    """Any drafter as a thinker that has but one idea, and may always have it."""

    drafter: Drafter
    silent = False

    def ideas(self, context: Sequence[int], k: int) -> Iterator[mx.array]:
        yield self.drafter.draft(context, k)


NOTHING = mx.array([], dtype=mx.uint32)
