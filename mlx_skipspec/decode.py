"""The only decoding loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import mlx.core as mx

from mlx_skipspec.drafters import NOTHING, Drafter, NoDraft, OneIdea, Thinker
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.kv import KV
from mlx_skipspec.layer_kv import RESERVE
from mlx_skipspec.passes import Passes
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.step import Step
from mlx_skipspec.target import Target

CLEAR_EVERY = 256  # rounds after which MLX's buffer cache is emptied, as mlx-lm does


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
    plain = isinstance(drafter, NoDraft) or draft_tokens == 0
    context = list(prompt)
    emitted = 0
    passes = Passes(target, kv, sampler)
    thinker = drafter if isinstance(drafter, Thinker) else OneIdea(drafter)
    try:
        drafter.begin(target, kv)
        filled = kv.length
        target.prefill(
            mx.array(context[filled:-1], dtype=mx.uint32), kv, prefill_step_size, lambda done: progress(filled + done)
        )
        current = passes.next(context, NOTHING).queue()
        broken = mx.isnan(current.logprobs).any()
        mx.async_eval(broken)  # queued here, it is known as soon as the first token is
        rounds = dropped = 0
        while True:
            # While nobody guesses the next pass is a plain one, and the host prepares it while the device is busy. With
            # no drafter, or a silent one, it is queued before this one is read; else it waits for whoever has an idea.
            ahead, queued = None, False
            if not current.drafted and max_tokens - emitted != 1:
                ahead, queued = passes.ahead(context, current), plain or thinker.silent
                if queued:
                    ahead.take(kv, idle=False)
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
            if not queued:
                kv.rewind_to(len(context) - 1)
            if not plain:
                drafter.observe(current.hidden[:, : len(tokens)])
            source = drafter.name if guess or dropped else None
            yield Step(tuple(tokens), len(guess), accepted, dropped, source, reason, current.logprobs[: len(tokens)])
            rounds += 1
            if rounds % CLEAR_EVERY == 0:
                mx.clear_cache()
            if reason:
                return
            room = draft_tokens if max_tokens < 0 else min(draft_tokens, max_tokens - emitted - 1)
            dropped = 0
            if room and not plain:
                chosen = None
                for idea in thinker.ideas(context, room):  # the device may be drafting while the host builds
                    chosen = passes.for_idea(context, idea) if idea.size else ahead
                dropped, ahead, chosen = drafter.dropped, chosen, None
            if ahead is None:
                current = passes.next(context, NOTHING).queue()
            else:
                current = ahead.round if queued else ahead.take(kv)
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
