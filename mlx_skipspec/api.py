"""The verbs users know from mlx-lm: load, stream_generate, generate."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.generate import wired_limit

from mlx_skipspec.decode import decode
from mlx_skipspec.drafting import Drafting, choose_drafter
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.kv import KV
from mlx_skipspec.loading import load, read_weights
from mlx_skipspec.pace import Paced
from mlx_skipspec.prompts import check_unicode
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.stats import Stats
from mlx_skipspec.target import Target, check_kv_format
from mlx_skipspec.text import TextStream, check_stop

__all__ = ["Response", "encode", "generate", "load", "stream_generate"]


@dataclass(frozen=True)
class Response:
    """One token of the answer: mlx-lm's GenerationResponse and what is ours.

    Attributes:
        text: the piece of text the token set free; may be empty.
        token: its id. A token that ends the text is reported too, and counted.
        logprobs: (V,) log-probabilities it was chosen from, lazy.
        from_draft: whether a drafter guessed it.
        generation_tps: tokens over the time since the first of them, as in mlx-lm; 0 for a lone token.
        peak_memory: of the process, in GB (1e9 bytes), as in mlx-lm.
        finish_reason: "stop" or "length" with the last token, else None.
        mode: what drafts, e.g. `lookup+skip(2,2)+hvc`; `none` when nothing does.
        source: the drafter that guessed in this token's round, None when none did.
        stats: counts of all rounds so far; one object that grows with the answer.
    """

    text: str
    token: int
    logprobs: mx.array
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: str | None = None
    mode: str = "none"
    source: str | None = None
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    stats: Stats = field(default_factory=Stats, repr=False)


def encode(tokenizer: Any, prompt: str | Sequence[int] | mx.array) -> list[int]:
    """Token ids of a prompt; text gets the tokenizer's special tokens unless it already begins with BOS.

    Raises:
        SkipSpecError: there is nothing in it.
    """
    if isinstance(prompt, str):
        bos = tokenizer.bos_token
        check_unicode(prompt, "The prompt")
        ids = tokenizer.encode(prompt, add_special_tokens=bos is None or not prompt.startswith(bos)) if prompt else []
    else:
        ids = prompt.tolist() if isinstance(prompt, mx.array) else list(prompt)
    if not ids:
        raise SkipSpecError("The prompt is empty; need at least one token. Give some text with --prompt.")
    return ids


def check_options(
    max_tokens: int = 256, stop: Sequence[str] = (), kv_bits: int | None = None, kv_group_size: int = 64, **_: Any
) -> None:
    """Refuse what no model could do, before one is fetched or loaded.

    Raises:
        SkipSpecError: a number out of its range, or an empty stop string.
    """
    if max_tokens == 0 or max_tokens < -1:
        raise SkipSpecError(f"max_tokens={max_tokens}; need a positive number, or -1 for no limit.")
    check_stop(stop)
    check_kv_format(kv_bits, kv_group_size)


def check_ids(target: Target, ids: Sequence[int], max_kv_size: int | None = None) -> None:
    """Refuse a prompt the model cannot take.

    Raises:
        SkipSpecError: longer than the context, or with ids outside the vocabulary (whose rows would be other memory).
    """
    context = target.args.max_position_embeddings
    if max_kv_size is None and len(ids) >= context:
        raise SkipSpecError(
            f"The prompt has {len(ids)} tokens, the model's context {context}; need fewer. "
            "Shorten it or give --max-kv-size."
        )
    outside = [token for token in ids if not 0 <= token < target.vocab_size]
    if outside:
        raise SkipSpecError(
            f"The text holds token id {outside[0]}; this model knows 0 to {target.vocab_size - 1}. "
            "Give it the tokenizer it was trained with."
        )


def stream_generate(
    target: Target,
    tokenizer: Any,
    prompt: str | Sequence[int] | mx.array,
    max_tokens: int = 256,
    *,
    drafting: Drafting | str = "auto",
    draft_tokens: int = 7,
    sampler: Sampler = GREEDY,
    stop: Sequence[str] = (),
    kv: KV | None = None,
    max_kv_size: int | None = None,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    prefill_step_size: int = 2048,
    prompt_progress_callback: Callable[[int, int], None] = lambda done, total: None,
) -> Generator[Response, None, None]:
    """Answer `prompt`, a Response per token.

    Args:
        max_tokens: most tokens to emit; -1 until the text ends or the model's context is full.
        drafting: "auto", "skip", "lookup" or "none" as on the command line, or what `choose_drafter` gave.
        draft_tokens: most tokens guessed per round; how many it is then, the pace decides.
        stop: strings that end the text and are not part of it.
        kv: a cache that holds the beginning of this prompt; else a new one is made. At the end, and whenever the
            generator is closed, it holds the prompt and the tokens given so far, all but the last.
        max_kv_size: cache at most so many rows, the first four and the newest.
        kv_bits: quantise the cache.

    Raises:
        SkipSpecError: an empty prompt, one longer than the context, a number out of its range, or a model whose first
            logits are NaN.
    """
    if not isinstance(sampler, Sampler):
        raise SkipSpecError(f"sampler={sampler!r}; need a mlx_skipspec.Sampler: what it draws depends on the position.")
    ids = encode(tokenizer, prompt)
    check_options(max_tokens, stop, kv_bits, kv_group_size)
    check_ids(target, ids, max_kv_size)
    outside = [token for token, _ in sampler.logit_bias if not 0 <= token < target.vocab_size]
    if outside:
        raise SkipSpecError(f"logit_bias names token {outside[0]}; this model knows 0 to {target.vocab_size - 1}.")
    context = target.args.max_position_embeddings
    if max_kv_size is None and not 0 < max_tokens <= context - len(ids):
        max_tokens = context - len(ids)
    if isinstance(drafting, str):
        drafting = choose_drafter(target, drafting, sampler=sampler)
    kv = kv or target.make_kv(max_kv_size, kv_bits, kv_group_size)
    read_weights(target)
    if isinstance(drafting.drafter, Paced):
        drafting.drafter.calibrate(target)  # here, since it is no part of the prompt's time
    text, stats, emitted = TextStream(tokenizer, stop), Stats(), 0
    started = time.perf_counter()
    first = None
    steps = decode(
        target,
        kv,
        ids,
        drafter=drafting.drafter,
        draft_tokens=draft_tokens,
        sampler=sampler,
        max_tokens=max_tokens,
        stop=text,
        prefill_step_size=prefill_step_size,
        progress=lambda done: prompt_progress_callback(done, len(ids)),
    )
    try:
        with wired_limit(target.model), closing(steps):
            for step in steps:
                now = time.perf_counter()
                first = first or now
                stats.add(step)
                segments = text.segments()
                for i, token in enumerate(step.tokens):
                    emitted += 1
                    last = step.finish_reason is not None and i == len(step.tokens) - 1
                    seconds = time.perf_counter() - first
                    yield Response(
                        text=segments[i] + (text.finish() if last else ""),
                        token=token,
                        logprobs=step.logprobs[i],
                        from_draft=i < step.from_draft,
                        prompt_tokens=len(ids),
                        prompt_tps=len(ids) / (first - started),
                        generation_tokens=emitted,
                        generation_tps=emitted / seconds if emitted > 1 else 0.0,
                        peak_memory=mx.get_peak_memory() / 1e9,
                        finish_reason=step.finish_reason if last else None,
                        mode=drafting.mode,
                        source=step.source,
                        prompt_seconds=first - started,
                        generation_seconds=seconds,
                        stats=stats,
                    )
    finally:
        # Closed in the middle of a block, the cache forgets the tokens nobody was given.
        given = len(ids) + emitted - 1
        if emitted and kv.length > given:
            kv.rewind_to(given if given >= kv.earliest else 0)


def generate(
    target: Target, tokenizer: Any, prompt: str | Sequence[int] | mx.array, verbose: bool = False, **options: Any
) -> str:
    """The whole answer as text; options as for `stream_generate`. `verbose` prints it as it comes, and the figures."""
    pieces = []
    for response in stream_generate(target, tokenizer, prompt, **options):
        pieces.append(response.text)
        if verbose:
            print(response.text, end="", flush=True)
    if verbose:
        from mlx_skipspec.report import summary

        print(f"\n{summary(response, target.dtype)}")
    return "".join(pieces)
