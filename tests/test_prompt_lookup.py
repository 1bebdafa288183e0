"""Lookup guesses what a search through the whole text would, at a cost that does not grow with the text."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from watched_kv import examples

from mlx_skipspec.decode import decode
from mlx_skipspec.drafters import NOTHING, PromptLookup
from mlx_skipspec.drafters.prompt_lookup import GROWTH, SEAM
from mlx_skipspec.drafters.suffix_automaton import COUNTED, SuffixAutomaton
from mlx_skipspec.target import Target

TOKENS = st.integers(0, 2)
TEXTS = st.lists(TOKENS, max_size=COUNTED)
LONG = 1 << 15


def searched(text: list[int], k: int, shortest: int, share: float) -> list[int]:
    """What lookup must guess, by looking everywhere."""
    n = len(text)
    for size in range(n - 1, shortest - 1, -1):
        # places of the token behind an earlier occurrence of the last `size` tokens
        if found := [at for at in range(size, n) if text[at - size : at] == text[n - size :]]:
            break
    else:
        return []
    places, guess = found, list[int]()
    while len(guess) < min(k, 1 + GROWTH * size):
        often = Counter(text[at] for at in places)
        token = max(places, key=lambda at: (often[text[at]], at))
        gone = [at + 1 for at in places if text[at] == text[token]]
        if len(gone) < share * len(found):
            break
        guess.append(text[token])
        places = [at for at in gone if at < n] or found
    return guess


@cache
def target() -> Target:
    return tiny.target()


def begin(lookup: PromptLookup) -> None:
    lookup.begin(target(), target().make_kv())


@given(
    text=TEXTS,
    k=st.integers(0, 12),
    shortest=st.integers(1, 3),
    share=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 1.0]),
)
@examples(800)
def test_the_guess_is_what_a_search_through_the_whole_text_finds(
    text: list[int], k: int, shortest: int, share: float
) -> None:
    guess = PromptLookup(shortest, share).draft(text, k).tolist()
    assert guess == searched(text, k, shortest, share)


GROW = st.tuples(st.just("grow"), st.lists(TOKENS, min_size=1, max_size=12))
EDIT = st.tuples(st.just("edit and begin"), st.lists(TOKENS, min_size=1, max_size=12))
REWIND = st.tuples(st.integers(0, 40), st.lists(TOKENS, max_size=20))
CUT = st.tuples(st.just("cut"), st.lists(TOKENS, max_size=3))


@given(story=st.lists(st.one_of(GROW, GROW, EDIT, REWIND, CUT), max_size=12), window=st.sampled_from([16, 40, 200]))
@examples(400)
def test_whatever_was_read_before_the_guess_depends_on_the_context_alone(
    story: list[tuple[str | int, list[int]]], window: int
) -> None:
    used, context = PromptLookup(window=window), [0, 1]
    for what, tokens in story:
        if what == "grow":
            context += tokens
        elif what == "edit and begin":
            context[: len(tokens)] = tokens
            begin(used)
        elif what == "cut":
            del context[max(len(context) - len(tokens), 1) :]
        else:
            context = [*context[: int(what)], *tokens, 0]
        assert used.draft(context, 9).tolist() == PromptLookup(window=window).draft(list(context), 9).tolist()


def test_a_list_cut_and_grown_again_behind_our_back_is_noticed() -> None:
    used, context = PromptLookup(), list(range(200))
    used.draft(context, 3)
    del context[200 - SEAM :]
    context += [*range(1000, 1000 + SEAM), 200 - SEAM, 200 - SEAM + 1]
    assert used.draft(context, 3).tolist() == NOTHING.tolist()


def test_it_copies_what_followed_the_longest_suffix() -> None:
    text = [1, 2, 3, 4, 9, 5, 3, 4, 7, 6, 2, 3, 4]
    assert PromptLookup().draft(text, 3).tolist() == [9, 5, 3]  # 2 3 4 is longer than the later 3 4


def test_of_several_continuations_it_takes_the_commonest_and_of_equals_the_latest() -> None:
    assert PromptLookup().draft([1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2], 1).tolist() == [7]
    assert PromptLookup().draft([1, 2, 7, 1, 2, 8, 5, 1, 2], 1).tolist() == [8]


def test_it_says_nothing_of_what_it_has_not_seen_or_seen_go_every_way() -> None:
    assert PromptLookup().draft([1, 2, 3, 4, 5], 3).tolist() == NOTHING.tolist()
    assert PromptLookup().draft([], 3).tolist() == NOTHING.tolist()
    assert PromptLookup().draft([1, 2, 6, 1, 2, 7, 1, 2, 8, 1, 2, 9, 1, 2], 3).tolist() == NOTHING.tolist()


def test_the_guess_grows_with_the_match_and_goes_on_in_circles_past_the_end() -> None:
    text = list(range(100, 200))
    for size in (2, 3, 9):
        assert PromptLookup().draft([*text, 1, *text[:size]], 50).tolist() == text[size : 2 * size + 1]
    assert PromptLookup().draft([1, 2, 3] * 4, 8).tolist() == [1, 2, 3, 1, 2, 3, 1, 2]


def test_it_forgets_a_text_that_is_not_the_beginning_of_the_new_one() -> None:
    lookup = PromptLookup()
    lookup.draft([1, 2, 3, 1, 2], 2)
    assert lookup.draft([7, 8, 1, 2], 2).size == 0


@pytest.mark.parametrize("when", range(1, 16))
def test_an_interrupt_in_the_middle_of_reading_does_no_harm(when: int) -> None:
    used, text, calls = PromptLookup(), [1, 2, 3, 1, 2, 4, 3, 1, 1, 2], itertools.count(1)
    used.draft(text[:5], 3)

    class Interrupted(SuffixAutomaton):
        def _prefer(self, state: int, token: int) -> None:
            if next(calls) == when:
                raise KeyboardInterrupt
            super()._prefer(state, token)

    used._automaton.__class__ = Interrupted
    with pytest.raises(KeyboardInterrupt):
        used.draft(text, 3)
    assert used.draft(text, 3).tolist() == PromptLookup().draft(text, 3).tolist() == [4, 3, 1]


class Extends:
    """Counts the tokens all automata read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens, extend = 0, SuffixAutomaton.extend

        def counting(automaton: SuffixAutomaton, token: int) -> None:
            self.tokens += 1
            extend(automaton, token)

        monkeypatch.setattr(SuffixAutomaton, "extend", counting)


def test_a_turn_that_continues_the_last_one_is_not_read_again_and_an_undone_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, lookup = Extends(monkeypatch), PromptLookup()
    turn = [*tiny.prompt(0), *tiny.prompt(1)]
    for text, read in ((turn, len(turn)), ([*turn, 5, 6, 7], 3), ([*turn, 5, 8], len(turn) + 2)):
        reading.tokens = 0
        begin(lookup)
        lookup.draft(text, 3)
        assert reading.tokens == read


def test_memory_has_a_limit_and_old_text_is_dropped_without_reading_the_rest_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, window, lookup = Extends(monkeypatch), 64, PromptLookup(window=64)
    draw, context = random.Random(0), list[int]()
    for length in range(1, 2000):
        context.append(draw.randrange(4))
        lookup.draft(context, 3)
        assert min(length, window // 2) <= len(lookup._read) < window
        assert len(lookup._automaton.link) <= 2 * window
    assert reading.tokens <= 2 * len(context)


class Watched(list[int]):
    """A list that counts the entries read from it."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.read += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Any:
        self.read += len(self)
        return super().__iter__()


def prose(draw: random.Random) -> list[int]:
    """Words by Zipf's law, and every so often a passage told again."""
    text: list[int] = []
    while len(text) < LONG:
        text += [int(30000 ** draw.random()) for _ in range(draw.randrange(60))]
        begin = draw.randrange(max(len(text) - 60, 1))
        text += text[begin : begin + draw.randrange(60)]
    return text


ORDINARY, WORST = 12, COUNTED + 4
LONG_TEXTS: dict[str, tuple[Callable[[random.Random], Sequence[int]], int]] = {
    "prose": (prose, ORDINARY),
    "every token another": (lambda draw: range(LONG), ORDINARY),
    "noise": (lambda draw: draw.choices(range(50000), k=LONG), ORDINARY),
    "coins": (lambda draw: draw.choices(range(2), k=LONG), WORST),
    "one token": (lambda draw: [7] * LONG, WORST),
    "a circle of seven": (lambda draw: [1, 2, 3, 4, 5, 6, 7] * (LONG // 7), WORST),
    "runs with breaks": (lambda draw: [int(at % 512 == 0) for at in range(LONG)], WORST),
    "ever longer runs": (lambda draw: [int(at**0.5 % 1 == 0) for at in range(LONG)], WORST),
    "Thue-Morse": (lambda draw: [at.bit_count() % 2 for at in range(LONG)], WORST),
}


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_token_costs_the_same_at_thirty_thousand_tokens_as_at_the_start(name: str) -> None:
    make, bound = LONG_TEXTS[name]
    text = list(make(random.Random(1)))
    lookup, context = PromptLookup(), Watched()
    links = lookup._automaton.link = Watched(lookup._automaton.link)
    for token in text:
        context.append(token)
        lookup.draft(context, 3)
    # A link is read for every state that is visited; of the context, the new token and the seam before it.
    assert links.read <= bound * len(text)
    assert context.read <= (SEAM + 1) * len(text)
    assert lookup._automaton.link is links
    assert len(links) <= 2 * len(text)
    assert sum(map(len, lookup._automaton.next)) <= 3 * len(text)


def test_the_loop_hands_over_one_list_that_grows() -> None:
    """Else lookup would have to compare the whole text every round."""
    seen: list[Sequence[int]] = []

    class Spy(PromptLookup):
        def draft(self, context: Sequence[int], k: int) -> mx.array:
            seen.append(context)
            return super().draft(context, k)

    list(decode(target(), target().make_kv(), tiny.prompt(0), drafter=Spy(), max_tokens=20))
    assert len(seen) > 3
    assert all(context is seen[0] for context in seen)
