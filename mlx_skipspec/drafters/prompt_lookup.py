"""Copy what followed the longest suffix seen before."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlx_skipspec.drafters.protocol import NOTHING
from mlx_skipspec.kv import KV
from mlx_skipspec.target import Target


class PromptLookup:
    """Finds the latest earlier place where the last `longest` … `shortest` tokens stood; proposes what came after.

    Every n-gram's last place is kept in a dictionary, so a new token costs `longest` entries however long the text is.
    """

    def __init__(self, longest: int = 8, shortest: int = 2) -> None:
        self.longest, self.shortest = longest, shortest
        self.name = "lookup"
        self._followed: dict[tuple[int, ...], int] = {}
        self._seen: list[int] = []

    def begin(self, target: Target, kv: KV) -> None:
        self._forget()

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        self._index(context)
        for n in range(min(self.longest, len(context) - 1), self.shortest - 1, -1):
            place = self._followed.get(tuple(context[-n:]))
            if place is not None:
                return mx.array(list(context[place : place + k]), dtype=mx.uint32)
        return NOTHING

    def observe(self, hidden: mx.array) -> None: ...

    def _index(self, context: Sequence[int]) -> None:
        """Enter every n-gram that has a token behind it; places count tokens, the first behind the n-gram."""
        if context[: len(self._seen)] != self._seen:
            self._forget()
        for place in range(max(len(self._seen), 1), len(context)):
            for n in range(self.shortest, min(self.longest, place) + 1):
                self._followed[tuple(context[place - n : place])] = place
        self._seen = list(context)

    def _forget(self) -> None:
        self._followed, self._seen = {}, []
