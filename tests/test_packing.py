"""Windows from texts: full, of whole texts where they fit, with nothing lost; and the work grows like the text."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from mlx_skipspec.convert.packing import Tokens, packed

Sizes = st.lists(st.integers(0, 60), max_size=150)  # of texts; more than wait for a place at once


def texts_of(sizes: list[int]) -> list[Tokens]:
    """Texts of these sizes whose tokens are all different."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [Tokens(list(range(a, a + n)), [True] * n) for a, n in zip(starts, sizes, strict=True)]


def runs(ids: list[int], starts: set[int]) -> list[list[int]]:
    """A window's pieces of texts."""
    found: list[list[int]] = []
    for token in ids:
        if found and found[-1][-1] == token - 1 and token not in starts:
            found[-1].append(token)
        else:
            found.append([token])
    return found


def test_a_text_longer_than_a_window_goes_on_in_the_next() -> None:
    texts = [Tokens(list(range(a, a + n)), [True] * n) for a, n in ((0, 4), (10, 25), (40, 3))]
    found = [window.ids for window in packed(iter(texts), 10)]
    assert found == [[0, 1, 2, 3, 40, 41, 42, 10, 11, 12], list(range(13, 23)), list(range(23, 33))]


@given(Sizes, st.integers(1, 25))
def test_a_window_is_full_and_made_of_texts_from_their_beginning_or_where_they_were_cut(
    sizes: list[int], length: int
) -> None:
    texts = [text for text in texts_of(sizes) if len(text)]
    starts, ends = {text.ids[0] for text in texts}, {text.ids[-1] for text in texts}
    cut: set[int] = set()  # what a text goes on with that a window's end has cut
    for window in packed(iter(texts), length):
        assert len(window) == length
        pieces = runs(window.ids, starts)
        assert all(piece[0] in starts | cut for piece in pieces)
        assert all(piece[-1] in ends for piece in pieces[:-1])
        cut.add(window.ids[-1] + 1)


@given(Sizes, st.integers(1, 25))
def test_a_text_that_fits_stands_whole_in_one_window_and_of_a_longer_one_everything_in_some(
    sizes: list[int], length: int
) -> None:
    texts = [text for text in texts_of(sizes) if len(text)]
    starts = {text.ids[0] for text in texts}
    pieces = [piece for window in packed(iter(texts), length) for piece in runs(window.ids, starts)]
    seen = {token for piece in pieces for token in piece}
    missing = 0
    for text in texts:
        if len(text) > length:
            missing += len(set(text.ids) - seen)
        else:
            assert pieces.count(text.ids) <= 1
            missing += 0 if text.ids in pieces else len(text)
    assert missing < length  # what filled no window at the end


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=100), st.integers(1, 25))
def test_something_in_every_window_is_scored_and_no_scored_token_gets_lost(
    kinds: list[tuple[int, bool]], length: int
) -> None:
    texts = texts_of([size for size, _ in kinds])
    texts = [Tokens(text.ids, [own] * len(text)) for text, (_, own) in zip(texts, kinds, strict=True)]
    found = list(packed(iter(texts), length))
    assert all(any(window.scored) for window in found)
    own = {token for text, (_, said) in zip(texts, kinds, strict=True) for token in text.ids if said}
    seen = {token for window in found for token, said in zip(window.ids, window.scored, strict=True) if said}
    assert seen <= own
    assert len(own - seen) < length


def test_a_text_of_a_million_tokens_is_cut_in_time_that_grows_like_it() -> None:
    """Copying what is left for every window took 11 s."""
    count = 1_000_000
    started = time.process_time()
    windows = sum(1 for _ in packed(iter([Tokens(list(range(count)), [True] * count)]), 256))
    assert windows == count // 256
    assert time.process_time() - started < 3
