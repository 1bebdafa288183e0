"""Text as it appears: whole characters, no stop string, nothing lost."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import checkpoint
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.text import TextStream


@cache
def tokenizer(kind: str = "byte level") -> Any:
    with TemporaryDirectory() as folder:
        checkpoint.write(Path(folder), tokenizer=checkpoint.TOKENIZERS[kind]())
        return load_tokenizer(Path(folder))


def ids(*tokens: str) -> list[int]:
    found = tokenizer().convert_tokens_to_ids(list(tokens))
    assert None not in found
    return found


def run(stream: TextStream, tokens: list[int]) -> tuple[list[str], int | None]:
    """The piece each token set free, the rest last, and how many tokens were taken when the text was over."""
    pieces: list[str] = []
    for n, token in enumerate(tokens, 1):
        over = stream(token)
        pieces += stream.segments()
        assert len(pieces) == n
        if over:
            return [*pieces, stream.finish()], n
    return [*pieces, stream.finish()], None


def as_shown(text: str) -> str:
    """mlx-lm shows no single space at the start of an answer, and neither do we."""
    return text.removeprefix(" ")


@settings(deadline=None)
@given(st.lists(st.integers(0, len(checkpoint.byte_level()) - 1)))
def test_the_pieces_are_the_decoded_tokens_whatever_bytes_they_hold(tokens: list[int]) -> None:
    zero = ids("Ā")[0]  # mlx-lm's detokeniser does not know the byte 0
    tokens = [token for token in tokens if token not in (zero, checkpoint.EOS)]
    pieces, _ = run(TextStream(tokenizer()), tokens)
    assert "".join(pieces) == as_shown(tokenizer().decode(tokens))


@settings(deadline=None)
@pytest.mark.parametrize("kind", checkpoint.TOKENIZERS)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="▁�")).map(str.lstrip))
def test_characters_split_over_several_tokens_come_whole(kind: str, text: str) -> None:
    tokens = tokenizer(kind).encode(text, add_special_tokens=False)
    pieces, _ = run(TextStream(tokenizer(kind)), tokens)
    assert "".join(pieces) == text == as_shown(tokenizer(kind).decode(tokens))
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("kind", checkpoint.TOKENIZERS)
def test_a_character_appears_with_the_last_of_its_bytes(kind: str) -> None:
    tokens = tokenizer(kind).encode("x€", add_special_tokens=False)[-4:]
    assert run(TextStream(tokenizer(kind)), tokens)[0] == ["x", "", "", "€", ""]


@pytest.mark.parametrize("kind", checkpoint.TOKENIZERS)
def test_half_a_character_at_the_end_is_shown_as_such(kind: str) -> None:
    tokens = tokenizer(kind).encode("x€", add_special_tokens=False)[-4:-1]
    pieces, _ = run(TextStream(tokenizer(kind)), tokens)
    assert pieces == ["x", "", "", "�"]


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "ab", "abc", "Ġ", "Ġabc"])),
    st.lists(st.text("abc ", min_size=1, max_size=5), max_size=3),
)
def test_the_text_ends_before_the_first_stop_string_that_appears(tokens: list[str], stop: list[str]) -> None:
    plain, end = "", None
    for n, piece in enumerate(run(TextStream(tokenizer()), ids(*tokens))[0], 1):
        plain += piece
        if ends := [plain.find(string) for string in stop if string in plain]:
            plain, end = plain[: min(ends)], n
            break
    pieces, taken = run(TextStream(tokenizer(), stop), ids(*tokens))
    assert "".join(pieces) == plain
    assert taken == (end if end is not None and end <= len(tokens) else None)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "ab", "abc"])),
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_the_longest_possible_beginning_of_a_stop_string_is_held_back(tokens: list[str], stop: list[str]) -> None:
    stream, text, shown = TextStream(tokenizer(), stop), "", ""
    for token in tokens:
        text += token
        if stream(ids(token)[0]):
            return
        shown += "".join(stream.segments())
        begun = [text[at:] for at in range(len(text)) if any(string.startswith(text[at:]) for string in stop)]
        assert shown == text.removesuffix(max(begun, key=len, default=""))


@pytest.mark.parametrize(
    ("tokens", "stop", "pieces", "taken"),
    [
        (["hello", "a", "b", "x"], ["ab"], ["hello", "", "", ""], 3),  # across tokens
        (["hello", "Ġabc", "x"], ["b"], ["hello", " a", ""], 2),  # inside one token
        (["a", "b", "c"], ["c", "b"], ["a", "", ""], 2),  # of two, the earlier
        (["x", "abc"], ["c", "b"], ["x", "a", ""], 2),  # of two in one token, the earlier in the text
        (["a", "b", "c"], ["abc", "ab"], ["", "", ""], 2),  # one is the beginning of the other
        (["a", "b", "x"], ["abc"], ["", "", "abx", ""], None),  # begun and not ended
        (["a", "b"], ["abc"], ["", "", "ab"], None),  # begun, then no more tokens
        (["x", "ab"], ["ab"], ["x", "", ""], 2),  # at the very end
        (["a", "a", "a", "b", "x"], ["aab"], ["", "", "a", "", ""], 4),  # begun again inside itself
        (["x", "Ġ"], [" "], ["x", "", ""], None),  # the tokenizer itself keeps a last space until the end
    ],
)
def test_stop_strings(tokens: list[str], stop: list[str], pieces: list[str], taken: int | None) -> None:
    assert run(TextStream(tokenizer(), stop), ids(*tokens)) == (pieces, taken)


def test_a_stop_string_may_be_a_character_of_several_tokens() -> None:
    tokens = tokenizer().encode("x€y", add_special_tokens=False)
    pieces, taken = run(TextStream(tokenizer(), ["€"]), tokens)
    assert ("".join(pieces), taken) == ("x", 4)


@pytest.mark.parametrize("kind", checkpoint.TOKENIZERS)
def test_the_token_that_ends_the_text_is_never_shown(kind: str) -> None:
    tokens = tokenizer(kind).encode("hello", add_special_tokens=False)
    pieces, taken = run(TextStream(tokenizer(kind)), [*tokens, checkpoint.EOS, *tokens])
    assert ("".join(pieces), taken) == ("hello", len(tokens) + 1)


def test_what_was_held_back_is_shown_when_a_token_ends_the_text() -> None:
    assert run(TextStream(tokenizer(), ["abc"]), [*ids("a", "b"), checkpoint.EOS]) == (["", "", "", "ab"], 3)


def test_nothing_is_left_after_the_finish() -> None:
    stream = TextStream(tokenizer(), ["abc"])
    stream(ids("ab")[0])
    assert (stream.segments(), stream.finish()) == ([""], "ab")
    assert (stream.segments(), stream.finish()) == ([], "")


def test_two_texts_at_a_time_do_not_mix() -> None:
    one, other = TextStream(tokenizer()), TextStream(tokenizer())
    for a, b in zip(ids("abc", "Ġhello"), ids("x", "y"), strict=True):
        one(a)
        other(b)
    assert "".join([*one.segments(), one.finish()]) == "abc hello"
    assert "".join([*other.segments(), other.finish()]) == "xy"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(SkipSpecError, match="at least one character"):
        TextStream(tokenizer(), ["end", ""])
