"""What a row sees in the cache: as in a list of rows, as in MLX's own ring, as in one-token steps under a model."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import RotatingKVCache
from tiny import FAMILIES, VOCAB, target
from watched_kv import GROUP, Watched, as_table, examples, rows, windows

from mlx_skipspec import layer_kv
from mlx_skipspec.kv import KV
from mlx_skipspec.layer_kv import RESERVE, STEP, Window
from mlx_skipspec.target import Target

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("block"), st.integers(1, 9)),
        st.tuples(st.just("block"), st.integers(10, 700)),
        st.tuples(st.just("steps"), st.integers(1, 150)),
        st.tuples(st.just("back"), st.integers(0, RESERVE)),
        st.tuples(st.just("to earliest"), st.just(0)),
        st.tuples(st.just("empty"), st.just(0)),
    ),
    min_size=3,
    max_size=10,
)


def live(watched: Watched, actions: list[tuple[str, int]]) -> None:
    """Do the actions; any length within RESERVE of the newest row there ever was can be rewound to."""
    newest, kv = 0, watched.kv
    for action, n in actions:
        if action == "block":
            watched.append(n)
        elif action == "steps":
            for _ in range(n):
                watched.append(1)
        elif action == "back":
            watched.rewind_to(max(min(kv.length, newest - n), 0))
        elif action == "to earliest":
            watched.rewind_to(min(kv.earliest, kv.length))
        else:
            watched.rewind_to(0)
            newest = 0
        newest = max(newest, kv.length)
        assert kv.length == len(watched.lists[0])
        assert kv.earliest <= max(newest - RESERVE, 0)
    for n in (1, 3, 1):  # whatever happened, the next ones see what they should
        watched.append(n)


@given(window=st.one_of(windows(), windows(700)), start=st.integers(1, 1200), actions=ACTIONS)
@examples(40)
def test_every_appended_row_sees_on_a_window_what_a_one_token_step_on_a_list_of_rows_sees(
    window: Window, start: int, actions: list[tuple[str, int]]
) -> None:
    live(Watched([window]), [("block", start), *actions])


@given(start=st.integers(1, 1200), actions=ACTIONS)
@examples(12)
def test_every_appended_row_sees_on_a_growing_cache_all_rows_before_it(
    start: int, actions: list[tuple[str, int]]
) -> None:
    live(Watched([None]), [("block", start), *actions])


@given(bits=st.sampled_from([4, 8]), window=st.one_of(st.none(), windows()), start=st.integers(1, 700), actions=ACTIONS)
@examples(20)
def test_every_appended_row_sees_quantised_rows_exactly_as_quantising_them_one_by_one_makes_them(
    bits: int, window: Window | None, start: int, actions: list[tuple[str, int]]
) -> None:
    live(Watched([window], bits), [("block", start), *actions])


@pytest.mark.parametrize("window", [Window(1), Window(64), Window(64, keep=4), Window(STEP + 1, keep=200)], ids=str)
def test_over_thousands_of_tokens_in_rounds_of_draft_and_rewind_every_row_sees_what_it_should(window: Window) -> None:
    watched = Watched([window])
    while watched.kv.length < 2500:
        n = watched.kv.length
        watched.append(1 + n % 11)
        watched.rewind_to(n + 1 + n % 3 if n % 11 > 2 else n + 1)


# MLX's own ring


def sets_seen(mask: Any, keys: mx.array, length: int) -> list[list[int]]:
    """For each of `length` queries, the positions it sees, in order."""
    at = np.round(np.array(keys[0, 0, :, 0])).astype(int)
    return [sorted(at[row].tolist()) for row in as_table(mask, length, len(at))]


class SideBySide:
    """Ours and mlx-lm's ring, given the same rows; every step asserts that the same positions are seen."""

    def __init__(self, window: Window) -> None:
        self.kv, self.ring = KV([window]), RotatingKVCache(window.size, window.keep)

    def step(self, length: int) -> None:
        layer = self.kv[0]
        new = rows(range(layer.offset, layer.offset + length))
        theirs = sets_seen(self.ring.make_mask(length), self.ring.update_and_fetch(*new)[0], length)
        ours = sets_seen(layer.mask(length), layer.update_and_fetch(*new)[0], length)
        assert ours == theirs


@given(window=windows(), blocks=st.lists(st.integers(1, 90), max_size=6), steps=st.integers(1, 100))
@examples(50)
def test_prefill_blocks_of_any_sizes_and_the_one_token_steps_after_them_see_what_mlx_lms_ring_shows(
    window: Window, blocks: list[int], steps: int
) -> None:
    both = SideBySide(window)
    with both.kv.prefilling():
        for length in blocks:
            both.step(length)
    for _ in range(steps):
        both.step(1)


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 17, 64, 1000])
def test_a_prompt_longer_than_the_window_prefilled_in_chunks_sees_what_mlx_lms_ring_shows(
    keep: int, chunk: int
) -> None:
    both = SideBySide(Window(16, keep))
    with both.kv.prefilling():
        for start in range(0, 600, chunk):
            both.step(min(chunk, 600 - start))
    for _ in range(40):
        both.step(1)


def test_a_block_after_prefilling_sees_what_one_token_steps_see_though_a_prefill_block_would_not() -> None:
    watched, block = Watched([Window(16, keep=4)]), Watched([Window(16, keep=4)])
    for each in (watched, block):
        each.append(40)
    watched.append(8)
    with block.kv.prefilling(), pytest.raises(AssertionError, match="not equal"):
        block.append(8)


def test_prefilling_ends_with_its_block_also_when_that_fails() -> None:
    kv = KV([Window(16, keep=4), None])

    def fail() -> None:
        with kv.prefilling():
            assert all(layer.prefilling for layer in kv.layers)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not any(layer.prefilling for layer in kv.layers)


# Under a model


DEEP = 3
KINDS: dict[str, tuple[list[Window | None], int | None]] = {
    "growing": ([None] * DEEP, None),
    "window": ([Window(16)] * DEEP, None),
    "window that keeps 4": ([Window(16, keep=4)] * DEEP, None),
    "mixed": ([None, Window(16), Window(24, keep=4)], None),
    "8 bits": ([None] * DEEP, 8),
    "4 bits": ([None] * DEEP, 4),
    "window of 8 bits that keeps 4": ([Window(16, keep=4)] * DEEP, 8),
}
LENGTH = 90
ROUND = st.tuples(  # rows of the block, of them right, draft rows, the layers they go to
    st.integers(1, 13), st.integers(1, 13), st.integers(0, 6), st.sets(st.integers(0, DEEP - 1), min_size=1)
)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that move every 8 rows or so: a short text sees what a long one would."""
    monkeypatch.setattr(layer_kv, "STEP", 8)
    monkeypatch.setattr(layer_kv, "RESERVE", 16)


def one_token_steps(model: Target, kind: str, tokens: mx.array) -> np.ndarray:  # (n,) -> (n, V)
    windows, bits = KINDS[kind]
    kv = KV(windows, bits, GROUP)
    logits = []
    for i in range(tokens.size):
        logits.append(model(tokens[i : i + 1], kv)[0][0])
        mx.eval(logits[-1], kv.state)
    return np.array(mx.concatenate(logits))


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_block_are_those_of_one_token_steps_after_any_drafts_and_rewinds(family: str, kind: str) -> None:
    model = target(family, num_hidden_layers=DEEP)
    tokens = mx.random.randint(0, VOCAB, (LENGTH,), key=mx.random.key(3))
    truth = one_token_steps(model, kind, tokens)
    windows, bits = KINDS[kind]

    @given(first=st.integers(1, 50), rounds=st.lists(ROUND, min_size=20, max_size=20), seed=st.integers(0, 99))
    @examples(3)
    def check(first: int, rounds: list[tuple[int, int, int, set[int]]], seed: int) -> None:
        kv = KV(windows, bits, GROUP)
        guesses = mx.random.randint(0, VOCAB, (len(rounds), 20), key=mx.random.key(seed))
        for guess, (count, right, drafted, layers) in zip(guesses, [(first, first, 0, {0}), *rounds], strict=False):
            n = kv.length
            for i in range(drafted):
                model.run(model.embed(guess[i : i + 1]), sorted(layers), kv)
            kv.rewind_to(n)
            right = min(right, count, LENGTH - n)
            block = mx.concatenate([tokens[n : n + right], guess[: count - right]])
            logits = np.array(model(block, kv)[0][0])
            # With the reference BLAS they are equal to the bit.
            np.testing.assert_allclose(logits[:right], truth[n : n + right], rtol=0, atol=1e-5)
            kv.rewind_to(n + right)
            if kv.length == LENGTH:
                break

    check()
