"""How much faster is it? mlx-lm's plain loop against ours, prompt by prompt in one process, around the same weights."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx_lm

from mlx_skipspec.api import stream_generate
from mlx_skipspec.check import mlx_lm_cache, mlx_lm_model
from mlx_skipspec.drafters import Drafter, FirstOf, NoDraft
from mlx_skipspec.drafting import Drafting
from mlx_skipspec.pace import Paced
from mlx_skipspec.stats import Stats
from mlx_skipspec.target import Target


@dataclass(frozen=True)
class Run:
    """One greedy answer, timed from outside.

    Attributes:
        prompt_seconds: until the first token was there.
        generation_seconds: from the first token to the last.
        peak_bytes: most that MLX's allocator held, without what the other side keeps between answers.
    """

    tokens: tuple[int, ...]
    prompt_seconds: float
    generation_seconds: float
    peak_bytes: int

    @property
    def generation_tok_s(self) -> float | None:
        """Tokens behind the first per second; None for a lone token."""
        return (len(self.tokens) - 1) / self.generation_seconds if len(self.tokens) > 1 else None

    @property
    def whole_tok_s(self) -> float:
        """Tokens per second, the prompt's pass included."""
        return len(self.tokens) / (self.prompt_seconds + self.generation_seconds)


@dataclass(frozen=True)
class Pair:
    """One prompt, answered both ways one after the other."""

    id: str
    task: str
    prompt_tokens: int
    plain: Run
    ours: Run
    stats: Stats = field(repr=False)

    @property
    def identical(self) -> bool:
        return self.plain.tokens == self.ours.tokens


@dataclass(frozen=True)
class Item:
    """A prompt in tokens."""

    id: str
    task: str
    tokens: Sequence[int]


class Bench:
    """Answers prompts with mlx-lm's `stream_generate` and with ours.

    `weights_bytes` is what MLX held when the weights had been read and nothing else: the bridge, a draft head and the
    cache a drafter keeps of its last text are ours to account for, though they lie in memory while mlx-lm runs.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: Any,
        drafting: Drafting,
        *,
        weights_bytes: int,
        draft_tokens: int,
        max_tokens: int,
        max_kv_size: int | None = None,
    ) -> None:
        self.target, self.tokenizer, self.drafting = target, tokenizer, drafting
        self.weights_bytes = weights_bytes
        self.draft_tokens, self.max_tokens, self.max_kv_size = draft_tokens, max_tokens, max_kv_size
        self.theirs = mlx_lm_model(target)

    def pairs(self, items: Sequence[Item], repeat: int = 1) -> Iterator[Pair]:
        """Every prompt, `repeat` times over; which side goes first alternates, and the first prompt warms up both."""
        self.plain(items[0].tokens), self.ours(items[0].tokens)
        for turn in range(repeat):
            for number, item in enumerate(items):
                if (turn + number) % 2:
                    ours, stats = self.ours(item.tokens)
                    plain = self.plain(item.tokens)
                else:
                    plain = self.plain(item.tokens)
                    ours, stats = self.ours(item.tokens)
                yield Pair(item.id, item.task, len(item.tokens), plain, ours, stats)

    def plain(self, prompt: Sequence[int]) -> Run:
        held = self._settle() - self.weights_bytes
        responses = mlx_lm.stream_generate(
            self.theirs,
            self.tokenizer,
            list(prompt),
            self.max_tokens,
            prompt_cache=mlx_lm_cache(self.target, self.theirs, self.max_kv_size),
        )
        return _timed((response.token for response in responses), held)

    def ours(self, prompt: Sequence[int]) -> tuple[Run, Stats]:
        self._settle()
        stats = Stats()

        def tokens() -> Iterator[int]:
            nonlocal stats
            for response in responses:
                stats = response.stats
                yield response.token

        with closing(
            stream_generate(
                self.target,
                self.tokenizer,
                prompt,
                self.max_tokens,
                drafting=self.drafting,
                draft_tokens=self.draft_tokens,
                max_kv_size=self.max_kv_size,
            )
        ) as responses:
            run = _timed(tokens(), 0)
        return run, stats

    def _settle(self) -> int:
        """Both sides start from the same state of the allocator; returns the bytes in use."""
        gc.collect()
        mx.clear_cache()
        mx.reset_peak_memory()
        return mx.get_active_memory()


def drafters_in(drafter: Drafter) -> list[Drafter]:
    """Those that guess themselves, out of what wraps them and asks them in turn."""
    if isinstance(drafter, (FirstOf, Paced)):
        return [leaf for one in drafter.drafters for leaf in drafters_in(one)]
    return [] if isinstance(drafter, NoDraft) else [drafter]


def _timed(tokens: Iterable[int], others_bytes: int) -> Run:
    seen: list[int] = []
    started = first = now = time.perf_counter()
    for token in tokens:
        now = time.perf_counter()
        if not seen:
            first = now
        seen.append(token)
    return Run(tuple(seen), first - started, now - first, mx.get_peak_memory() - others_bytes)
