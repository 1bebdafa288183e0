"""The cache that outlives a prompt, and what of it serves the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from mlx_skipspec.decode import agree
from mlx_skipspec.kv import KV

MARKS = 2  # prompts to whose beginning a window's cache can return although it has forgotten rows since


class KeptCache:
    """One cache over many prompts, which goes back to the longest beginning that the next one has in common with it.

    Attributes:
        kv: the rows of `held`, token ids; it must be exact, since it is gone on with from anywhere.
        prefilled: tokens of the last prompt that were not there yet.
    """

    def __init__(self, kv: KV, held: Sequence[int] = ()) -> None:
        self.kv, self.held = kv, list(held)
        self.prefilled = 0
        self.marks: deque[tuple[int, Any]] = deque(maxlen=MARKS)  # length, and the cache as it was

    def begin(self, ids: Sequence[int]) -> None:
        """Hold a prefix of `ids`, the longest that can be, but not all of them: the last one's pass gives the answer's
        first token."""
        shared = agree(self.held[: len(ids) - 1], ids)
        while self.marks and self.marks[-1][0] > shared:
            self.marks.pop()
        if shared >= self.kv.earliest:
            self.kv.rewind_to(shared)
        elif self.marks:
            self.kv.return_to(self.marks[-1][1])
        else:
            self.kv.rewind_to(0)
        known = self.marks[-1][0] if self.marks else None
        if known != self.kv.length and any(layer.window for layer in self.kv.layers):
            self.marks.append((self.kv.length, self.kv.mark()))
        self.prefilled = len(ids) - self.kv.length

    def end(self, ids: Sequence[int]) -> None:
        """Say what the rows are of now: a prompt and its answer, as far as they go."""
        self.held = list(ids[: self.kv.length])
