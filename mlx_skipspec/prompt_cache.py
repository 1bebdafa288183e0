"""The cache of a prompt's beginning, so that a long one is prefilled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlx_skipspec.decode import agree
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.kv import KV
from mlx_skipspec.target import Target

CONTINUATIONS = ("the", "A", " b", "\n1", "?")  # what may follow: a last token that depends on it is left out
AGAIN = "Make it again: mlx-skipspec cache-prompt."


@dataclass(frozen=True)
class PromptCache:
    """Rows and what they are of.

    Attributes:
        ids: the tokens whose rows `kv` holds.
        system, prompt: the texts they came from; what is asked goes on behind `prompt`.
    """

    ids: tuple[int, ...]
    kv: KV
    system: str | None = None
    prompt: str = ""

    def begin(self, ids: Sequence[int]) -> KV:
        """The cache, as far as it serves a prompt of these ids.

        Raises:
            SkipSpecError: not at all.
        """
        shared = agree(self.ids[: len(ids) - 1], ids)
        if not shared or shared < self.kv.earliest:
            raise SkipSpecError(
                "The prompt does not begin as the prompt cache does; need the chat template's flags that it was made "
                f"with. {AGAIN}"
            )
        self.kv.rewind_to(shared)
        return self.kv


def beginning(encode: Callable[[str], list[int]], prompt: str) -> list[int]:
    """The ids that stay the same whatever follows `prompt`.

    Args:
        encode: gives the ids of a question, in its template.

    Raises:
        SkipSpecError: none do.
    """
    # White space at the end often becomes part of the next word's token.
    first, *others = (encode(text + more) for text in (prompt, prompt.rstrip()) for more in CONTINUATIONS)
    same = min(agree(first[: len(ids)], ids) for ids in others)
    if not same:
        raise SkipSpecError("There is nothing to keep: no token stays the same whatever follows. Give a longer prompt.")
    return first[:same]


def fill(
    target: Target,
    ids: Sequence[int],
    kv: KV,
    prefill_step_size: int = 2048,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **texts: Any,
) -> PromptCache:
    """Prefill `ids` into the empty, exact `kv`; `texts` are the system and the prompt they came from, and `progress`
    hears how many tokens are done, of how many."""
    tokens = mx.array(list(ids), dtype=mx.uint32)
    target.prefill(tokens, kv, prefill_step_size, lambda done: progress(done, len(ids)))
    return PromptCache(tuple(ids), kv, **texts)
