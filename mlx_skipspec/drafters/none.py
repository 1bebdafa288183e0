"""The drafter that says nothing: with it the loop is plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlx_skipspec.drafters.protocol import NOTHING
from mlx_skipspec.kv import KV
from mlx_skipspec.target import Target


class NoDraft:
    name, dropped = "none", 0

    def begin(self, target: Target, kv: KV) -> None: ...

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        return NOTHING

    def observe(self, hidden: mx.array) -> None: ...
