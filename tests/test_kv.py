"""The cache beside a plain list of rows, beside MLX's own ring, and under a model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.models.cache import RotatingKVCache
from tiny import FAMILIES, VOCAB, target

from mlx_skipspec import kv as kv_module
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.kv import KV, RESERVE, STEP, LayerKV, Window
from mlx_skipspec.target import Target

GROUP = 32
HEADS, WIDTH = 2, 32


def examples(count: int) -> settings:
    return settings(max_examples=count, derandomize=True, deadline=None, database=None)


def numbers(ids: Sequence[int]) -> np.ndarray:  # -> (2, 1, H, L, D)
    """Keys and values from which a row's id can be read back, also after 4 bits: it is the smallest number in a key."""
    base = np.array(ids, dtype=np.float32)[:, None]
    pattern = np.arange(WIDTH, dtype=np.float32) / 100 + np.arange(HEADS, dtype=np.float32)[:, None, None] * 1000
    keys = (base + pattern)[None]
    return np.stack([keys, -keys - 1])


def rows(ids: Sequence[int]) -> tuple[mx.array, mx.array]:  # -> (1, H, L, D) twice
    keys, values = numbers(ids)
    return mx.array(keys), mx.array(values)


def plain(pair: Any, bits: int | None) -> np.ndarray:  # -> (2, 1, H, L, D)
    if bits is not None:
        pair = [mx.dequantize(*x, group_size=GROUP, bits=bits) for x in pair]
    return np.array(mx.stack(pair))


def stored(ids: Sequence[int], bits: int | None) -> np.ndarray:  # -> (2, 1, H, L, D)
    """What a list of rows would give back for these ids."""
    return numbers(ids) if bits is None else plain([mx.quantize(x, GROUP, bits) for x in rows(ids)], bits)


def as_table(mask: Any, length: int, width: int) -> np.ndarray:  # -> (L, rows) of bool
    """What fast attention makes of a mask."""
    if mask is None:
        return np.ones((length, width), dtype=bool)
    if isinstance(mask, str):
        return np.tri(length, width, width - length, dtype=bool)
    return np.array(mask)


def one_token_sees(window: Window | None, queries: range, count: int) -> np.ndarray:  # -> (L, count) of bool
    """The rule, from nothing but positions: what one-token steps see on a growing cache or on MLX's ring."""
    query, position = np.array(queries)[:, None], np.arange(count)[None]
    seen = position <= query
    if window is not None:
        seen &= (position < window.keep) | (position > query - (window.size - window.keep)) | (query < window.size)
    return seen


class Watched:
    """A KV beside a list of row ids for each layer: every append asserts that its rows see what the list says."""

    def __init__(self, windows: Sequence[Window | None], bits: int | None = None) -> None:
        self.kv, self.bits = KV(windows, bits, GROUP), bits
        self.lists = [np.zeros(0, dtype=int) for _ in windows]
        self.used = 0  # ids are never used twice: a stale row is not mistaken for a new one at its position

    def append(self, count: int, layers: Sequence[int] | None = None, ids: Sequence[int] | None = None) -> None:
        ids = range(self.used, self.used + count) if ids is None else ids
        self.used = max(self.used, ids[-1] + 1)
        for i in range(len(self.lists)) if layers is None else layers:
            layer, held = self.kv[i], np.append(self.lists[i], ids)
            self.lists[i] = held
            mask = layer.mask(count)
            got = plain(layer.update_and_fetch(*rows(ids)), self.bits)
            position = np.full(self.used, -1)
            position[held] = np.arange(len(held))
            at = position[np.round(got[0, 0, 0, :, 0]).astype(int)]
            table = as_table(mask, count, got.shape[-2])
            looked_at = table.any(axis=0)
            assert (at[looked_at] >= 0).all(), "a row is seen that was taken back"
            seen = np.zeros((count, len(held)), dtype=bool)
            seen[:, at[looked_at]] = table[:, looked_at]
            assert seen.sum() == table.sum(), "a row is seen twice"
            expected = one_token_sees(layer.window, range(len(held) - count, len(held)), len(held))
            np.testing.assert_array_equal(seen, expected)
            np.testing.assert_array_equal(got[..., looked_at, :], stored(held[at[looked_at]], self.bits))

    def rewind_to(self, length: int) -> None:
        self.kv.rewind_to(length)
        self.lists = [held[:length] for held in self.lists]

    def snapshot(self) -> list[tuple[Any, ...]]:
        """Everything a layer is, for "nothing has changed"."""
        return [
            (
                layer.offset,
                layer.forgotten,
                layer.earliest,
                *(np.array(x).tobytes() for _, x in tree_flatten(layer.state)),
            )
            for layer in self.kv.layers
        ]


def windows(largest: int = 40) -> st.SearchStrategy[Window]:
    sized = st.tuples(st.integers(1, largest), st.integers(0, 6))
    return sized.map(lambda pair: Window(pair[0] + pair[1], pair[1]))


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


# Going back


MIXED = [None, Window(16), Window(40, keep=4), Window(200), None]
HISTORY = st.lists(
    st.tuples(st.integers(1, 150), st.sets(st.integers(0, len(MIXED) - 1)), st.integers(1, 20), st.integers(0, 60)),
    min_size=1,
    max_size=3,
)


def with_history(history: list[tuple[int, set[int], int, int]], start: int = 1, bits: int | None = None) -> Watched:
    """Blocks in all layers, draft rows in some, and the way back from both; the last draft's rows are still there."""
    watched = Watched(MIXED, bits)
    watched.append(start)
    for block, layers, drafted, rejected in history:
        watched.rewind_to(max(watched.kv.length - rejected, watched.kv.earliest))
        watched.append(block)
        for _ in range(drafted):
            watched.append(1, sorted(layers)) if layers else None
    return watched


@given(history=HISTORY, start=st.integers(1, 900), bits=st.sampled_from([None, 8]), back=st.integers(0, RESERVE - 20))
@examples(10)
def test_rewinding_twice_is_rewinding_once_and_the_rows_seen_afterwards_are_right_in_every_layer(
    history: Any, start: int, bits: int | None, back: int
) -> None:
    once, twice = with_history(history, start, bits), with_history(history, start, bits)
    length = max(once.kv.length - back, 0)
    once.rewind_to(length)
    twice.rewind_to(length)
    twice.rewind_to(length)
    assert once.snapshot() == twice.snapshot()
    assert {layer.offset for layer in once.kv.layers} == {length}
    for n in (1, 5, 1):
        once.append(n)


@given(history=HISTORY, start=st.integers(1, 900), back=st.integers(1, RESERVE - 20))
@examples(12)
def test_rewinding_and_appending_the_same_rows_again_gives_the_same_state(history: Any, start: int, back: int) -> None:
    watched = with_history(history, start)
    length = watched.kv.length
    watched.rewind_to(length)
    before, earliest = watched.lists, watched.kv.earliest
    watched.rewind_to(max(length - back, 0))
    watched.append(length - watched.kv.length, ids=before[0][watched.kv.length :])
    np.testing.assert_array_equal(watched.lists, before)
    assert watched.kv.earliest == earliest or watched.kv.earliest <= length - RESERVE
    for n in (1, 5, 1):  # compared with the lists, and so with what the rows would have seen without the detour
        watched.append(n)


@given(history=HISTORY, start=st.integers(1, 900), drafted=st.integers(1, 20), beyond=st.integers(1, 100))
@examples(12)
def test_rewinding_forward_or_below_zero_is_refused_and_changes_no_layer(
    history: Any, start: int, drafted: int, beyond: int
) -> None:
    watched = with_history(history, start)
    n = watched.kv.length
    watched.rewind_to(n)
    watched.append(drafted, [0, 2])
    before = watched.snapshot()
    for length in (
        n + 1,
        n + drafted,
        n + drafted + beyond,
    ):  # some layers hold a draft's rows; all must, or none moves
        with pytest.raises(SkipSpecError, match=f"looks forward: {n} rows are held"):
            watched.kv.rewind_to(length)
    with pytest.raises(SkipSpecError, match="or more, or 0"):
        watched.kv.rewind_to(-beyond)
    assert watched.snapshot() == before


@given(history=HISTORY, start=st.integers(600, 1200), below=st.integers(1, 100))
@examples(10)
def test_rewinding_to_rows_a_window_forgot_is_refused_with_what_is_needed_and_changes_no_layer(
    history: Any, start: int, below: int
) -> None:
    watched = with_history(history, start)
    before, earliest = watched.snapshot(), watched.kv.earliest
    assert 0 < earliest <= watched.kv.length
    with pytest.raises(SkipSpecError, match=f"need {earliest} or more, or 0"):
        watched.kv.rewind_to(max(earliest - below, 1))
    assert watched.snapshot() == before
    watched.rewind_to(earliest)
    for n in (1, 5, 1):
        watched.append(n)


@given(history=HISTORY, start=st.integers(1, 1200), bits=st.sampled_from([None, 4]))
@examples(10)
def test_rewinding_to_zero_always_works_and_leaves_an_empty_cache(history: Any, start: int, bits: int | None) -> None:
    watched = with_history(history, start, bits)
    watched.rewind_to(0)
    assert watched.kv.length == watched.kv.earliest == 0
    for n in (1, 30, 1, 300, 1):
        watched.append(n)


def test_prefilling_ends_with_its_block_also_when_that_fails() -> None:
    kv = KV([Window(16, keep=4), None])

    def fail() -> None:
        with kv.prefilling():
            assert all(layer.prefilling for layer in kv.layers)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not any(layer.prefilling for layer in kv.layers)


@pytest.mark.parametrize(("size", "keep"), [(0, 0), (4, 4), (3, 4)])
def test_a_window_with_no_room_behind_the_rows_it_keeps_is_refused(size: int, keep: int) -> None:
    with pytest.raises(SkipSpecError, match=f"need more than {keep}"):
        Window(size, keep)


# Memory


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("window", [Window(64), Window(64, keep=4), Window(129)], ids=str)
@pytest.mark.parametrize("block", [1, 5, 700])
def test_a_window_never_holds_more_than_a_constant_number_of_rows(window: Window, bits: int | None, block: int) -> None:
    layer = LayerKV(window, bits, GROUP)
    new = rows(range(block))
    row_bytes = 2 * HEADS * WIDTH * (32 if bits is None else bits + 2 * 32 / GROUP) / 8
    for _ in range(5000 // block if block > 1 else 1500):
        layer.update_and_fetch(*new)
        mx.eval(layer.state)
        assert layer.nbytes <= (window.size + RESERVE + 2 * STEP) * row_bytes


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("window", [None, Window(64), Window(64, keep=4), Window(129)], ids=str)
def test_a_row_is_written_where_it_stays_and_buffers_move_once_in_a_hundred_tokens_at_most(
    window: Window | None, bits: int | None
) -> None:
    layer, new, addresses = LayerKV(window, bits, GROUP), rows([7]), []
    for _ in range(1500):
        mx.eval(layer.update_and_fetch(*new), layer.state)
        first = tree_flatten(layer.state)[0][1]
        addresses.append(np.array(first, copy=False).__array_interface__["data"][0])
    assert sum(a != b for a, b in pairwise(addresses)) <= len(addresses) / 100


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
    monkeypatch.setattr(kv_module, "STEP", 8)
    monkeypatch.setattr(kv_module, "RESERVE", 16)


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
