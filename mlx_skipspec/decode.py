"""The only decoding loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from mlx_skipspec.drafters import NOTHING, Drafter, NoDraft
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.kv import KV, RESERVE
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.step import Step
from mlx_skipspec.target import Target

CLEAR_EVERY = 256  # rounds after which MLX's buffer cache is emptied, as mlx-lm does


@dataclass(frozen=True)
class Round:
    """One target pass under way: nothing of it has been read by the host."""

    drafted: int
    answer: mx.array  # (2n + 1,): the guess and what the target chose, to be read at once
    truth: mx.array  # (n + 1,)
    logprobs: mx.array  # (n + 1, V)
    hidden: mx.array  # (1, n + 1, D)

    def read(self) -> tuple[list[int], list[int]]:
        """Guess and truth on the host: the one read of a round."""
        answer = cast("list[int]", self.answer.tolist())
        return answer[: self.drafted], answer[self.drafted :]


def agree(guess: Sequence[int], truth: Sequence[int]) -> int:
    """Length of the longest prefix on which guess and truth agree: the rule of verification, greedy or sampled."""
    for i, token in enumerate(guess):
        if token != truth[i]:
            return i
    return len(guess)


def decode(
    target: Target,
    kv: KV,
    prompt: Sequence[int],
    *,
    drafter: Drafter | None = None,
    draft_tokens: int = 3,
    sampler: Sampler = GREEDY,
    max_tokens: int = -1,
    stop: Callable[[int], bool] = lambda token: False,
    prefill_step_size: int = 2048,
    progress: Callable[[int], None] = lambda done: None,
) -> Generator[Step, None, None]:
    """Emit what the target says after `prompt`, a Step per target pass.

    `kv` may already hold the rows of the prompt's beginning (a prefix it was filled with); the rest is prefilled.
    Whenever the generator ends, is closed or is interrupted, `kv` holds the rows of the prompt and of every emitted
    token but the last: what the next call, whose prompt begins with all of these, expects.

    Args:
        drafter: who guesses; None for plain decoding.
        draft_tokens: most tokens a guess may hold.
        max_tokens: most tokens to emit; -1 for no limit.
        stop: asked once for every emitted token, in order; True ends the text with that token.
        progress: hears how many prompt tokens are done.

    Raises:
        SkipSpecError: an empty prompt, a cache that holds as many rows as the prompt has tokens, or NaN for logits.
    """
    drafter = drafter or NoDraft()
    if not prompt:
        raise SkipSpecError("The prompt is empty; need at least one token.")
    if kv.length >= len(prompt):
        raise SkipSpecError(
            f"The cache holds {kv.length} rows, the prompt {len(prompt)} tokens; rewind the cache first."
        )
    if max_tokens == 0 or not 0 <= draft_tokens < RESERVE:
        raise SkipSpecError(
            f"max_tokens={max_tokens}, draft_tokens={draft_tokens}; need max_tokens != 0 (-1: no limit) and "
            f"0 <= draft_tokens < {RESERVE}, the rows a sliding window can go back."
        )
    k = 0 if isinstance(drafter, NoDraft) else draft_tokens
    context = list(prompt)
    emitted = 0
    needs_history = bool(sampler.all_processors)

    def launch(tokens: mx.array, guess: mx.array, position: int, history: mx.array | None) -> Round:
        """Queue one pass over [last, guess]; `position` is that of the first token to be chosen."""
        logits, hidden = target(mx.concatenate([tokens, guess]), kv)
        if history is not None:
            history = mx.concatenate([history, guess])
        logprobs = sampler.logprobs(logits[0], history)
        truth = sampler.choose(logprobs, position)
        answer = mx.concatenate([guess, truth]) if guess.size else truth
        mx.async_eval(answer)
        return Round(guess.size, answer, truth, logprobs, hidden)

    def as_history() -> mx.array | None:
        return mx.array(context, dtype=mx.uint32) if needs_history else None

    try:
        drafter.begin(target, kv)
        filled = kv.length
        target.prefill(
            mx.array(context[filled:-1], dtype=mx.uint32), kv, prefill_step_size, lambda done: progress(filled + done)
        )
        current = launch(mx.array(context[-1:], dtype=mx.uint32), NOTHING, len(context), as_history())
        broken = mx.isnan(current.logprobs).any()
        mx.async_eval(broken)  # queued here, it is known as soon as the first token is
        rounds = 0
        while True:
            # Plain decoding keeps one pass ahead: the next is queued on the token nobody has read yet.
            ahead = None
            if k == 0 and max_tokens - emitted != 1:
                last, history = current.truth, as_history()
                if history is not None:
                    history = mx.concatenate([history, last])
                ahead = launch(last, NOTHING, len(context) + 1, history)
            guess, truth = current.read()
            if rounds == 0:
                progress(len(prompt))
                if broken.item():
                    raise SkipSpecError(
                        "The model's logits are not numbers (NaN); need whole weights and a dtype they fit into. "
                        "Try --dtype float32, or copy the weights again."
                    )
            accepted = agree(guess, truth)
            tokens, reason = _emit(truth[: accepted + 1], max_tokens - emitted, stop)
            context += tokens
            emitted += len(tokens)
            if ahead is None:
                kv.rewind_to(len(context) - 1)
                drafter.observe(current.hidden[:, : len(tokens)])
            source = drafter.name if guess else None
            yield Step(tuple(tokens), len(guess), accepted, source, reason, current.logprobs[: len(tokens)])
            rounds += 1
            if rounds % CLEAR_EVERY == 0:
                mx.clear_cache()
            if reason:
                return
            if ahead is not None:
                current = ahead
                continue
            room = k if max_tokens < 0 else min(k, max_tokens - emitted - 1)
            current = launch(
                mx.array(context[-1:], dtype=mx.uint32),
                drafter.draft(context, room) if room else NOTHING,
                len(context),
                as_history(),
            )
    finally:
        # An interrupt may have come between two layers; absolute rewinding does not care.
        length = min(len(context) - 1, kv.length)
        kv.rewind_to(length if length >= kv.earliest else 0)


def _emit(tokens: list[int], room: int, stop: Callable[[int], bool]) -> tuple[list[int], str | None]:
    """What of the verified tokens is emitted, and why it ends there if it does; `room` < 0 is no limit."""
    for i, token in enumerate(tokens):
        if stop(token):
            return tokens[: i + 1], "stop"
        if i + 1 == room:
            return tokens[: i + 1], "length"
    return tokens, None
