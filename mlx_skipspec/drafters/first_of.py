"""Ask drafters in turn."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlx_skipspec.drafters.protocol import NOTHING, Drafter
from mlx_skipspec.kv import KV
from mlx_skipspec.target import Target


class FirstOf:
    """The first drafter with an idea guesses; all of them observe."""

    def __init__(self, *drafters: Drafter) -> None:
        self.drafters = drafters
        self.name, self.dropped = "first-of", 0

    def begin(self, target: Target, kv: KV) -> None:
        for drafter in self.drafters:
            drafter.begin(target, kv)

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        for drafter in self.drafters:
            guess = drafter.draft(context, k)
            if guess.size:
                self.name, self.dropped = drafter.name, drafter.dropped
                return guess
        self.dropped = 0
        return NOTHING

    def observe(self, hidden: mx.array) -> None:
        for drafter in self.drafters:
            drafter.observe(hidden)
