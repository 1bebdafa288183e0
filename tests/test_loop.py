"""The loop: where texts end, what the cache holds then, and how often the host reads."""

from __future__ import annotations

import itertools

import mlx.core as mx
import pytest
import tiny
from drafters import DRAFTERS, Liar, Oracle

from mlx_skipspec.decode import agree, decode
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.pace import SILENCE
from mlx_skipspec.passes import BEGIN, Round
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.stats import Stats
from mlx_skipspec.target import Target

PROMPT = tiny.prompt(0)


def text_of(target: Target, **options: object) -> list[int]:
    kv = target.make_kv()
    tokens = [token for step in decode(target, kv, PROMPT, **options) for token in step.tokens]
    assert kv.length == len(PROMPT) + len(tokens) - 1
    return tokens


def test_agree_is_the_longest_common_prefix() -> None:
    assert agree([], [5]) == 0
    assert agree([1, 2, 3], [1, 2, 3, 4]) == 3
    assert agree([1, 9, 3], [1, 2, 3, 4]) == 1


@pytest.mark.parametrize("drafter", ["none", "gap", "oracle"])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
def test_a_stop_token_anywhere_in_a_block_ends_the_text_there(drafter: str, at: int) -> None:
    target = tiny.target()
    whole = text_of(target, max_tokens=12)
    seen: list[int] = []

    def stop(token: int) -> bool:
        seen.append(token)
        return len(seen) == at + 1

    guesser = DRAFTERS[drafter](target, GREEDY, PROMPT + whole)
    kv = target.make_kv()
    steps = list(decode(target, kv, PROMPT, drafter=guesser, draft_tokens=5, stop=stop, max_tokens=12))
    tokens = [token for step in steps for token in step.tokens]
    assert tokens == seen == whole[: at + 1]
    assert kv.length == len(PROMPT) + at
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["stop"]
    if drafter == "oracle":
        assert Stats.of(steps).acceptance == 1.0 if at else True
    # The cache is good to go on with.
    rest = decode(target, kv, PROMPT + tokens, max_tokens=12 - len(tokens))
    assert [token for step in rest for token in step.tokens] == whole[at + 1 :]


@pytest.mark.parametrize("drafter", ["none", "gap", "oracle", "liar"])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6])
def test_max_tokens_is_exact(drafter: str, max_tokens: int) -> None:
    target = tiny.target()
    whole = text_of(target, max_tokens=12)
    guesser = DRAFTERS[drafter](target, GREEDY, PROMPT + whole)
    assert text_of(target, drafter=guesser, draft_tokens=5, max_tokens=max_tokens) == whole[:max_tokens]


@pytest.mark.parametrize("drafter", ["none", "lookup", "oracle"])
def test_without_max_tokens_the_text_goes_on_until_stop(drafter: str) -> None:
    target = tiny.target()
    whole = text_of(target, max_tokens=200)
    seen: list[int] = []
    guesser = DRAFTERS[drafter](target, GREEDY, PROMPT + whole)
    assert (
        text_of(target, drafter=guesser, max_tokens=-1, stop=lambda t: seen.append(t) or len(seen) == 150)
        == whole[:150]
    )


@pytest.mark.parametrize("drafter", ["none", "gap", "oracle", "liar", "paced, picky", "paced, parked"])
@pytest.mark.parametrize("rounds", [1, 2, 4, 20])
@pytest.mark.parametrize("cache", [{}, {"max_kv_size": 20}], ids=["growing", "rotating"])
def test_closed_between_rounds_the_cache_holds_all_but_the_last_token(drafter: str, rounds: int, cache: dict) -> None:
    target = tiny.target()
    kv = target.make_kv(**cache)
    whole = [t for step in decode(target, target.make_kv(**cache), PROMPT, max_tokens=30) for t in step.tokens]
    steps = decode(target, kv, PROMPT, drafter=DRAFTERS[drafter](target, GREEDY, PROMPT + whole), max_tokens=30)
    tokens = [token for step in itertools.islice(steps, rounds) for token in step.tokens]
    steps.close()
    assert [layer.offset for layer in kv.layers] == [len(PROMPT) + len(tokens) - 1] * tiny.DEPTH
    if len(tokens) < 30:
        rest = decode(target, kv, PROMPT + tokens, max_tokens=30 - len(tokens))
        tokens += [token for step in rest for token in step.tokens]
    assert tokens == whole


class Interrupted:
    """Lets `count` layer passes of a target go by and then raises, wherever the loop happens to be."""

    def __init__(self, target: Target, count: int) -> None:
        self.target, self.left = target, count
        self.blocks = list(target.model.model.layers)

    def __enter__(self) -> None:
        outer = self

        class Guard:
            def __init__(self, block: object) -> None:
                self.block = block
                self.think = block.think

            def attend(self, *args: object) -> mx.array:
                outer.left -= 1
                if outer.left < 0:
                    raise KeyboardInterrupt
                return self.block.attend(*args)

        self.target.model.model.layers = [Guard(block) for block in self.blocks]

    def __exit__(self, *_: object) -> None:
        self.target.model.model.layers = self.blocks


@pytest.mark.parametrize("drafter", ["none", "gap+hvc", "liar", "paced, picky", "paced, parked"])
@pytest.mark.parametrize("cache", [{}, {"max_kv_size": 20}], ids=["growing", "rotating"])
@pytest.mark.parametrize("count", [3, 6, 8, 13, 21, 35, 50, 121])
def test_interrupted_between_any_two_layers_the_cache_is_good_to_go_on(drafter: str, cache: dict, count: int) -> None:
    target = tiny.target()
    whole = [t for step in decode(target, target.make_kv(**cache), PROMPT, max_tokens=30) for t in step.tokens]
    kv, tokens = target.make_kv(**cache), []
    guesser = DRAFTERS[drafter](target, GREEDY, PROMPT + whole)
    steps = (step.tokens for step in decode(target, kv, PROMPT, drafter=guesser, max_tokens=30))
    with Interrupted(target, count), pytest.raises(KeyboardInterrupt):
        tokens.extend(token for step in steps for token in step)
    if tokens:
        assert kv.length == len(PROMPT) + len(tokens) - 1
    rest = decode(target, kv, PROMPT + tokens, max_tokens=30 - len(tokens))
    assert tokens + [token for step in rest for token in step.tokens] == whole


@pytest.mark.parametrize("drafter", ["none", "gap+hvc", "lookup", "oracle", "liar"])
def test_the_host_reads_once_a_round(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny.target()
    whole = text_of(target, max_tokens=30)
    reads = []
    read = Round.read
    monkeypatch.setattr(Round, "read", lambda self: reads.append(1) or read(self))
    guesser = DRAFTERS[drafter](target, GREEDY, PROMPT + whole)
    steps = list(decode(target, target.make_kv(), PROMPT, drafter=guesser, max_tokens=30))
    assert len(reads) == len(steps)


def test_plain_decoding_queues_the_next_pass_before_it_reads() -> None:
    target = tiny.target()
    order: list[str] = []
    call, read = Target.__call__, Round.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "__call__", lambda self, *a: order.append("pass") or call(self, *a))
        patch.setattr(Round, "read", lambda self: order.append("read") or read(self))
        text_of(target, max_tokens=4)
    assert order == ["pass", "pass", "read", "pass", "read", "pass", "read", "read"]


def test_beside_a_silent_drafter_too_and_else_after_it_has_read() -> None:
    target = tiny.target()
    whole = text_of(target, max_tokens=60)
    queue, read = Round.queue, Round.read
    idles: list[bool] = []  # of every pass, as it was queued
    ahead: list[int] = []  # passes queued beyond the one that is read

    def queueing(self: Round, idle: bool = True) -> Round:
        idles.append(idle)
        return queue(self, idle)

    def reading(self: Round) -> tuple[list[int], list[int]]:
        ahead.append(len(idles) - len(ahead) - 1)
        return read(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Round, "queue", queueing)
        patch.setattr(Round, "read", reading)
        assert text_of(target, max_tokens=60, drafter=DRAFTERS["paced, parked"](target, GREEDY, [])) == whole
    assert set(ahead) == {0, 1}
    assert ahead[:SILENCE] == [0] * SILENCE
    assert sum(ahead) == idles.count(False) > 20


@pytest.mark.parametrize("drafter", ["gap", "lookup", "liar", "paced", "paced, picky", "paced, parked"])
def test_a_pass_that_an_idle_device_begins_between_its_layers_is_the_same(drafter: str) -> None:
    target = tiny.target(num_hidden_layers=2 * BEGIN)
    whole = text_of(target, max_tokens=40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Round, "queue", lambda self, idle=True: mx.eval(self.answer) or self)
        assert text_of(target, max_tokens=40) == whole
    assert text_of(target, max_tokens=40, drafter=DRAFTERS[drafter](target, GREEDY, [])) == whole


def test_every_processor_sees_the_true_history() -> None:
    target = tiny.target()
    for drafter in (None, Liar(), DRAFTERS["gap"](target, GREEDY, [])):
        histories: list[list[int]] = []

        def spy(tokens: mx.array, logits: mx.array, histories: list[list[int]] = histories) -> mx.array:
            histories.append(tokens.tolist())
            return logits - 3.0 * (mx.arange(tiny.VOCAB) == tokens[-1])

        sampler = Sampler(processors=(spy,))
        tokens = text_of(target, drafter=drafter, sampler=sampler, max_tokens=20)
        for i in range(20):
            assert PROMPT + tokens[:i] in histories
        if drafter is None:
            plain = tokens
        assert tokens == plain


def test_a_prefix_in_the_cache_is_not_prefilled_again() -> None:
    target = tiny.target()
    kv = target.make_kv()
    target.prefill(mx.array(PROMPT[:10]), kv)
    done: list[int] = []
    tokens = [t for step in decode(target, kv, PROMPT, max_tokens=9, progress=done.append) for t in step.tokens]
    assert tokens == text_of(target, max_tokens=9)
    assert done == [len(PROMPT) - 1, len(PROMPT)]


@pytest.mark.parametrize("step_size", [1, 3, 7, 2048])
@pytest.mark.parametrize("length", [1, 2, 3, 24])
def test_prompts_of_any_length_in_blocks_of_any_size(step_size: int, length: int) -> None:
    target = tiny.target()
    want = [t for s in decode(target, target.make_kv(), PROMPT[:length], max_tokens=9) for t in s.tokens]
    got = [
        t
        for s in decode(
            target,
            target.make_kv(),
            PROMPT[:length],
            max_tokens=9,
            prefill_step_size=step_size,
            drafter=DRAFTERS["gap"](target, GREEDY, []),
        )
        for t in s.tokens
    ]
    assert got == want


def test_nothing_to_do_is_refused() -> None:
    target = tiny.target()
    kv = target.make_kv()
    with pytest.raises(SkipSpecError, match="empty"):
        next(decode(target, kv, []))
    with pytest.raises(SkipSpecError, match="max_tokens=0"):
        next(decode(target, kv, PROMPT, max_tokens=0))
    with pytest.raises(SkipSpecError, match="draft_tokens=128"):
        next(decode(target, kv, PROMPT, draft_tokens=128))
    target.prefill(mx.array(PROMPT), kv)
    with pytest.raises(SkipSpecError, match="rewind the cache"):
        next(decode(target, kv, PROMPT))


def test_an_oracle_needs_a_pass_for_every_k_plus_one_tokens() -> None:
    target = tiny.target()
    whole = text_of(target, max_tokens=31)
    steps = list(
        decode(target, target.make_kv(), PROMPT, drafter=Oracle(PROMPT + whole), draft_tokens=5, max_tokens=31)
    )
    assert [len(step.tokens) for step in steps] == [1, 6, 6, 6, 6, 6]
