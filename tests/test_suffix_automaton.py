"""The automaton knows what a search through the text would find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_kv import examples

from mlx_skipspec.drafters import PromptLookup, suffix_automaton
from mlx_skipspec.drafters.suffix_automaton import COUNTED, SuffixAutomaton

TOKENS = st.integers(0, 2)


def automaton_of(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.extend(token)
    return automaton


@given(text=st.lists(TOKENS, max_size=COUNTED))
@examples(200)
def test_the_automaton_knows_of_every_substring_how_often_it_stands_there_and_what_follows_most(
    text: list[int],
) -> None:
    automaton, n = automaton_of(text), len(text)
    for begin in range(n):
        state = 0
        for end in range(begin + 1, n + 1):
            state = automaton.next[state][text[end - 1]]
            part = text[begin:end]
            ends = [at for at in range(len(part), n + 1) if text[at - len(part) : at] == part]
            assert automaton.count[state] == len(ends)
            often = Counter(text[at] for at in ends if at < n)
            assert automaton.next[state].keys() == often.keys()
            best = max((at for at in ends if at < n), key=lambda at: (often[text[at]], at), default=None)
            assert automaton.best[state] == (-1 if best is None else text[best])


@given(text=st.lists(TOKENS, min_size=1, max_size=80), counted=st.integers(1, 3))
@examples(200)
def test_where_not_all_is_counted_the_match_is_still_the_longest_and_the_guess_has_followed_it(
    text: list[int], counted: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_automaton, "COUNTED", counted)
        automaton = automaton_of(text)
        guess = PromptLookup().draft(text, 1).tolist()
    n, size = len(text), automaton.length[automaton.match]
    suffix = text[n - size :]
    assert suffix in [text[at - size : at] for at in range(size, n)]
    assert text[n - size - 1 :] not in [text[at - size - 1 : at] for at in range(size + 1, n)]
    assert all([*suffix, token] in [text[at : at + size + 1] for at in range(n - size)] for token in guess)
