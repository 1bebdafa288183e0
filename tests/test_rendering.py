"""From a conversation to token ids: the template's text, and answers as they were generated."""

from __future__ import annotations

from typing import Any

import checkpoint
import pytest
from chatting import model

from mlx_skipspec import SkipSpecError
from mlx_skipspec.messages import Message
from mlx_skipspec.rendering import MARK, Rendering
from mlx_skipspec.thoughts import ThoughtStream, split_thoughts

# As Qwen3's: thoughts of earlier answers are dropped, and an empty thought tells the model not to think.
DROPS = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{% if m['role'] == 'assistant' %}"
    "{{ m['content'].split('</think>')[-1].lstrip('\n') }}{% else %}{{ m['content'] }}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENS = DROPS.replace("{% if enable_thinking is", "{% if true %}<think>\n{% endif %}{% if enable_thinking is")
USER = Message("user", "hello")


def thinking(template: str) -> Any:
    """A tokenizer that knows thoughts."""
    return model(template=template, think=True)[1]


def rendering(template: str = checkpoint.TEMPLATE, **arguments: Any) -> Rendering:
    return Rendering(thinking(template), {"enable_thinking": True, **arguments})


def answer(made: Rendering, text: str, after: str) -> Message:
    """As if the model had generated it."""
    ids = made.encode(text)
    return Message("assistant", made.decode(made.spoken(ids, after)), "", tuple(ids), after)


def text_of(made: Rendering, messages: list[Message]) -> str:
    return str(made.tokenizer.decode(made.ids(messages)))


def test_a_template_that_keeps_thoughts_keeps_all_of_an_answers_tokens() -> None:
    made = rendering()
    assert made.keeps_thoughts
    first = made.ids([USER])
    said = answer(made, "<think>\nwell\n</think>\n\nworld", made.opening)
    assert made.ids([USER, said, USER])[: len(first) + len(said.ids or ())] == [*first, *(said.ids or ())]


@pytest.mark.parametrize("template", [DROPS, OPENS], ids=["drops", "opens"])
@pytest.mark.parametrize("think", [True, False])
def test_a_template_that_drops_thoughts_keeps_what_is_stable(template: str, think: bool) -> None:
    made = rendering(template, enable_thinking=think)
    assert not made.keeps_thoughts
    made.ids([USER])
    thought = "" if not think else "well\n</think>\n\n" if template == OPENS else "<think>\nwell\n</think>\n\n"
    said = answer(made, f"{thought}world", made.opening)
    assert said.content == "world"
    stable = text_of(made, [USER]).split("<think>")[0]
    assert text_of(made, [USER, said, USER]).startswith(f"{stable}world</s>")
    whole = said.ids or ()
    kept = made.spoken(whole, said.after)
    assert kept == list(whole[len(whole) - len(kept) :])  # tokens as generated


def test_whether_the_template_opens_the_thoughts_is_seen() -> None:
    for template, opens in ((OPENS, True), (DROPS, False)):
        made = rendering(template)
        made.ids([USER])
        assert made.opens_thoughts(made.opening) is opens
        ids = made.encode("well well")  # interrupted
        said = made.message(ids, None)
        assert (said.content, said.thoughts) == (("", "well well") if opens else ("well well", ""))
        assert ("well well" in text_of(made, [USER, said, USER])) is not opens


def test_white_space_an_answers_first_token_carries_is_not_doubled() -> None:
    made = rendering("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}</s>{% endfor %}[assistant]")
    first = made.ids([USER])
    said = answer(made, " world", made.opening)
    assert made.ids([USER, said, USER])[: len(first) + len(said.ids or ())] == [*first, *(said.ids or ())]
    assert "[assistant] world</s>" in text_of(made, [USER, said, USER])


def test_text_that_looks_like_our_mark_is_text() -> None:
    made = rendering()
    asked = Message("user", f"{MARK}0; and {MARK}{MARK}1;")
    said = answer(made, "world", "")
    assert made.tokenizer.decode(made.ids([asked, said, USER])).count("world") == 1


def test_an_answer_from_a_file_is_read_as_text_with_its_thoughts_where_they_are_kept() -> None:
    said = Message("assistant", "world", "well")
    assert "<think>\nwell\n</think>\n\nworld</s>" in text_of(rendering(), [USER, said, USER])
    assert "well" not in text_of(rendering(DROPS), [USER, said, USER])


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}",
        "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}",
    ],
    ids=["drops answers", "says them twice"],
)
def test_a_template_that_does_something_else_with_answers_is_refused(template: str) -> None:
    made = rendering(template)
    with pytest.raises(SkipSpecError, match="does not show each earlier answer once"):
        made.ids([USER, Message("assistant", "world"), USER])


def test_a_model_without_a_template_is_refused() -> None:
    tokenizer = model(template="none")[1]
    with pytest.raises(SkipSpecError, match="no chat template"):
        Rendering(tokenizer)


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "thinking", "parts"),
    [
        ("a<b</think", False, [("a<b</think", False)]),
        ("<think>so</think>\n\nyes", False, [("<think>so</think>", True), ("\n\nyes", False)]),
        ("so</think>yes <think>", True, [("so</think>", True), ("yes ", False), ("<think>", True)]),
        ("no end", True, [("no end", True)]),
    ],
)
def test_thoughts_are_told_from_the_answer_however_the_text_is_cut(
    text: str, thinking: bool, parts: list[tuple[str, bool]], step: int
) -> None:
    stream = ThoughtStream("<think>", "</think>", thinking)
    joined: list[tuple[str, bool]] = []
    pieces = [part for at in range(0, len(text), step) for part in stream(text[at : at + step])] + stream.finish()
    for piece, thought in pieces:
        if joined and joined[-1][1] == thought:
            joined[-1] = joined[-1][0] + piece, thought
        else:
            joined.append((piece, thought))
    assert joined == parts


def test_without_tags_all_is_answer() -> None:
    stream = ThoughtStream(None, None)
    assert stream("<think>") + stream.finish() == [("<think>", False)]
    assert split_thoughts(model()[1], [5, 6]) == ([], [5, 6])


def test_thoughts_that_do_not_end_are_all_there_is() -> None:
    made = rendering()
    ids = made.encode("<think>\nwell")
    assert split_thoughts(made.tokenizer, ids) == (ids, [])
    assert made.spoken(ids, "") == []
