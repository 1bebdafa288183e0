"""Conversations for training: the tokens a model will meet, and which of them are its own to say."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import checkpoint
import pytest
from mlx_lm.utils import load_tokenizer

from mlx_skipspec.convert.chats import DATE, item_tokens
from mlx_skipspec.convert.packing import Tokens
from mlx_skipspec.errors import SkipSpecError

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# As Qwen3's: an answer without a thought gets an empty one, and only the last answer keeps its own.
THINKING = (
    "{% for m in messages %}{% if m['role'] != 'assistant' %}<|user|>{{ m['content'] }}</s>{% else %}<|assistant|>"
    "{% if loop.last %}{{ '' if '(thought)' in m['content'] else '()' }}{{ m['content'] }}"
    "{% else %}{{ m['content'].split(')')[-1] }}{% endif %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DATED = "{{ date_string if date_string is defined else 'today' }}" + checkpoint.TEMPLATE
TURNS = [("user", "one"), ("assistant", "(thought)two"), ("user", "three"), ("assistant", "(thought)four")]
TALK = {"messages": [{"role": role, "content": content} for role, content in TURNS]}


def tokenizer(kind: str = "byte level", template: str | None = checkpoint.TEMPLATE) -> Any:
    made = checkpoint.TOKENIZERS[kind]()
    made.chat_template = template
    with TemporaryDirectory() as folder:
        return load_tokenizer(checkpoint.write(Path(folder), tokenizer=made))


def scored(tokens: Tokens, kind: Any) -> str:
    """The text that what is scored leads to."""
    return kind.decode([b for a, b in zip(tokens.scored, tokens.ids[1:], strict=False) if a])


@pytest.mark.parametrize("kind", checkpoint.TOKENIZERS)
@pytest.mark.parametrize(
    ("template", "whole", "said"),
    [
        (checkpoint.TEMPLATE, "<|user|>hello</s><|assistant|>the token</s>", "the token</s>"),
        (CHATML, "<|user|>hello</s>\n<|assistant|>the token</s>", "the token</s>"),
        (THINKING, "<|user|>hello</s><|assistant|>the token</s>", "the token</s>"),
        (DATED, f"{DATE}<|user|>hello</s><|assistant|>the token</s>", "the token</s>"),
        (None, "hello\nthe token\n", "the token\n"),
    ],
    ids=["plain", "chatml", "thinking", "dated", "none"],
)
def test_an_answer_follows_its_prompt_as_it_would_when_it_is_generated(
    kind: str, template: str | None, whole: str, said: str
) -> None:
    reader = tokenizer(kind, template)
    tokens = item_tokens({"prompt": "hello", "answer": "the token"}, reader, "here")
    assert tokens.ids == reader.encode(whole, add_special_tokens=False)
    assert scored(tokens, reader).strip(" ") == said
    assert sum(tokens.scored) == len(tokens) - len(reader.encode(whole[: -len(said)], add_special_tokens=False))


def test_every_answer_of_a_conversation_is_scored() -> None:
    reader = tokenizer(template=CHATML)
    tokens = item_tokens(TALK, reader, "here")
    assert scored(tokens, reader) == "(thought)two</s>(thought)four</s>"
    assert reader.decode(tokens.ids) == reader.apply_chat_template(TALK["messages"], tokenize=False).rstrip()


def test_where_a_template_rewrites_earlier_turns_the_last_answer_is() -> None:
    reader = tokenizer(template=THINKING)
    tokens = item_tokens(TALK, reader, "here")
    assert scored(tokens, reader) == "(thought)four</s>"
    assert (
        reader.decode(tokens.ids)
        == "<|user|>one</s><|assistant|>two</s><|user|>three</s><|assistant|>(thought)four</s>"
    )


@pytest.mark.parametrize(
    "item", [{"text": "some words"}, {"prompt": "nobody answers"}, {"messages": [{"role": "user", "content": "hello"}]}]
)
def test_where_nobody_answers_everything_is_scored(item: dict[str, Any]) -> None:
    tokens = item_tokens(item, tokenizer(), "here")
    assert all(tokens.scored)
    assert tokenizer().decode(tokens.ids).endswith("<|assistant|>") == ("text" not in item)


def test_an_empty_answer_is_the_end_of_a_turn() -> None:
    reader = tokenizer(template=None)
    assert scored(item_tokens({"prompt": "hello", "answer": ""}, reader, "here"), reader) == "\n"
    assert scored(item_tokens({"prompt": "hello", "answer": ""}, tokenizer(), "here"), tokenizer()) == "</s>"


def test_what_a_template_refuses_is_named_by_its_place() -> None:
    refusing = tokenizer(template="{{ raise_exception('no system messages') }}")
    with pytest.raises(SkipSpecError, match=r"some\.jsonl, line 3 does not fit .*no system messages.*mend or drop it"):
        item_tokens(TALK, refusing, "some.jsonl, line 3")
