"""Going back in the cache: to any length it remembers, in every layer or in none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_kv import Watched, examples

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.layer_kv import RESERVE, Window

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
