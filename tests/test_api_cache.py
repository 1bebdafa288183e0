"""The verbs and the cache: good to go on with wherever the text ends, bounded, and quantised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import mlx.core as mx
import mlx_lm
import pytest
import tiny
from loaded_twice import PROMPT, TOKENS, model, text_of, tokens_of, whole
from mlx_lm.models.cache import RotatingKVCache

from mlx_skipspec import SkipSpecError, stream_generate
from mlx_skipspec.api import Response
from mlx_skipspec.layer_kv import RESERVE, STEP
from mlx_skipspec.target import Target


@pytest.mark.parametrize("at", [1, 2, 5, 6, 12])
@pytest.mark.parametrize("guesser", ["none", "oracle"])
def test_a_stop_string_inside_an_accepted_block_ends_the_text_and_leaves_the_cache_good(guesser: str, at: int) -> None:
    here = model()
    # A stop string that lies over the tokens at-1 and at: what they decode to together.
    pieces = [response.text for response in here.ask()]
    assert "".join(pieces).isascii() is False  # the text has split characters in it as well
    stop = next(pieces[i] + pieces[i + 1] for i in range(at - 1, TOKENS) if pieces[i].strip() and pieces[i + 1].strip())
    kv = here.target.make_kv()
    drafting = here.oracle(whole()) if guesser == "oracle" else here.drafting["none"]
    answer = here.ask(drafting=drafting, draft_tokens=5, stop=[stop], kv=kv)
    assert text_of(answer) == "".join(pieces).split(stop)[0]
    assert answer[-1].finish_reason == "stop"
    tokens = tokens_of(answer)
    assert tokens == whole()[: len(tokens)]
    assert kv.length == len(here.ids) + len(tokens) - 1
    rest = here.ask(prompt=here.ids + tokens, max_tokens=TOKENS - len(tokens), kv=kv)
    assert tokens + tokens_of(rest) == whole()


@pytest.mark.parametrize("given", [1, 2, 3, 6, 7, 8])
@pytest.mark.parametrize("size", [None, 20], ids=["growing", "rotating"])
def test_closed_after_any_token_the_cache_holds_what_was_given_but_the_last(given: int, size: int | None) -> None:
    here, text = model(), whole(size)
    kv = here.target.make_kv(size)
    answer = stream_generate(
        here.target, here.tokenizer, PROMPT, drafting=here.oracle(text), draft_tokens=5, kv=kv, max_tokens=TOKENS
    )
    with closing(answer):
        tokens = [next(answer).token for _ in range(given)]
    assert kv.length == len(here.ids) + given - 1
    rest = here.ask(prompt=here.ids + tokens, max_tokens=12 - given, kv=kv)
    assert tokens + tokens_of(rest) == text[:12]


def test_a_cache_that_is_refused_is_left_alone() -> None:
    here = model()
    kv = here.target.make_kv()
    here.target.prefill(mx.array([*here.ids, 5, 6, 7]), kv)
    with pytest.raises(SkipSpecError, match="rewind the cache"):
        here.ask(kv=kv)
    assert kv.length == len(here.ids) + 3


def test_a_chat_goes_on_in_the_same_cache() -> None:
    here = model()
    kv, history = here.target.make_kv(), list(here.ids)
    for turn in ([40, 41], [50, 51, 52], []):
        answer = tokens_of(here.ask(prompt=history, kv=kv, max_tokens=7, drafting=here.drafting["auto, bridged"]))
        assert answer == tokens_of(here.ask(prompt=history, max_tokens=7))
        history += [*answer, *turn]
        assert kv.length == len(history) - len(turn) - 1


def test_a_ring_has_no_context_limit() -> None:
    here = model(context=len(model().ids) + 5)
    assert len(here.ask(max_kv_size=16)) == TOKENS


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_max_kv_size_bounds_the_cache_of_every_family(family: str) -> None:
    here = model(family)
    size, ids = 24, [*here.ids, *range(200)] * 5
    kv = here.target.make_kv(size)
    answer = here.ask(prompt=ids, max_tokens=9, kv=kv, prefill_step_size=100)
    assert kv.length == len(ids) + len(answer) - 1  # positions, not rows
    rows = [layer.state[0].shape[2] for layer in kv.layers]
    assert max(rows) <= size + RESERVE + 2 * STEP < len(ids)


@pytest.mark.parametrize(("family", "choice"), [("llama", "none"), *((f, "auto, bridged") for f in tiny.FAMILIES)])
def test_max_kv_size_gives_the_text_of_mlx_lms_ring(family: str, choice: str) -> None:
    here = model(family)
    ring = [RotatingKVCache(max_size=20, keep=4) for _ in here.target.layers]
    theirs = mlx_lm.stream_generate(here.theirs, here.their_tokenizer, PROMPT, max_tokens=40, prompt_cache=ring)
    ours = here.ask(max_tokens=40, max_kv_size=20, drafting=here.drafting[choice])
    assert tokens_of(ours) == [response.token for response in theirs] != tokens_of(here.ask(max_tokens=40))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_cache_is_smaller_and_drafting_does_not_change_its_text(bits: int) -> None:
    here = model()
    exact, small = here.target.make_kv(), here.target.make_kv(bits=bits, group_size=32)
    here.ask(kv=exact)
    plain = here.ask(kv=small)
    assert small.nbytes < exact.nbytes * bits / 16
    drafted = here.ask(kv_bits=bits, kv_group_size=32, drafting=here.drafting["auto, bridged"])
    assert tokens_of(plain) == tokens_of(drafted)
    assert not mx.array_equal(plain[0].logprobs, here.ask(max_tokens=1)[0].logprobs)
    assert mx.array_equal(plain[0].logprobs, drafted[0].logprobs)


def test_a_generator_that_is_never_read_costs_nothing() -> None:
    here = model()
    kv = here.target.make_kv()
    answer: Iterator[Response] = stream_generate(here.target, here.tokenizer, PROMPT, kv=kv)
    del answer
    assert kv.length == 0
    assert isinstance(here.target, Target)
