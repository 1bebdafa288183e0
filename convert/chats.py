"""Conversations as a model will meet them: its own template, and which tokens are its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_skipspec.convert.packing import Tokens
from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.prompts import check_unicode, templated

KEYS = ("role", "content")
# Some templates write today's date; training must find the same text tomorrow. Others don't look at this.
DATE = "26 Jul 2024"

Message = dict[str, str]


def item_tokens(item: Any, tokenizer: Any, where: str) -> Tokens:
    """Tokens of {"text"}, or of what the model's chat template makes of {"messages"}, or of {"prompt"} and {"answer"}.

    Scored is what the assistant says, with the end of its turn; everything, where nobody answers.

    Raises:
        SkipSpecError: it is none of them, or the template refuses it.
    """
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        return plain(check_unicode(item["text"], f"{where}: the text"), tokenizer)
    try:
        if isinstance(item, dict) and "messages" in item:
            return _conversation(_checked(item["messages"], where), tokenizer)
        if not isinstance(item, dict) or not isinstance(item.get("prompt"), str):
            raise SkipSpecError(f'{where} has no "text", "messages" or "prompt"; need one of them.')
        prompt, answer = check_unicode(item["prompt"], f"{where}: the prompt"), item.get("answer")
        if "answer" not in item:
            return plain(_rendered([{"role": "user", "content": prompt}], tokenizer, ask=True), tokenizer)
        if not isinstance(answer, str):
            raise SkipSpecError(f'{where} has an "answer" of {answer!r}; need text, or none.')
        return _answered(prompt, check_unicode(answer, f"{where}: the answer"), tokenizer)
    except SkipSpecError as error:
        if error.__cause__ is None:
            raise
        raise SkipSpecError(
            f"{where} does not fit the model's chat template ({one_line(error.__cause__)}); mend or drop it."
        ) from error


def plain(text: str, tokenizer: Any) -> Tokens:
    """A text without a form."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Tokens(ids, [True] * len(ids))


def has_template(tokenizer: Any) -> bool:
    """Whether chats have a form of their own; transformers' tokenizers don't say it in a word."""
    return bool(getattr(tokenizer, "has_chat_template", getattr(tokenizer, "chat_template", None) is not None))


def _checked(messages: Any, where: str) -> list[Message]:
    """A conversation in the OpenAI message shape."""
    good = isinstance(messages, list) and messages
    if not good or not all(isinstance(m, dict) and all(isinstance(m.get(k), str) for k in KEYS) for m in messages):
        raise SkipSpecError(f'{where}: "messages" is no list of {{"role": text, "content": text}}; mend or drop it.')
    return [{key: check_unicode(m[key], f"{where}: a message") for key in KEYS} for m in messages]


def _answered(prompt: str, answer: str, tokenizer: Any) -> Tokens:
    """What the model says behind its generation prompt. The answer does not go through the template, which may put
    words in front of it that the model never said (an empty thought, say)."""
    end = tokenizer.eos_token or "" if has_template(tokenizer) else "\n"
    asked = _rendered([{"role": "user", "content": prompt}], tokenizer, ask=True)
    return _joined([(asked, False), (answer + end, True)], tokenizer)


def _conversation(messages: list[Message], tokenizer: Any) -> Tokens:
    """Every answer is scored; only the last one where the template rewrites earlier turns."""
    answers = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    for scored in (answers, answers[-1:]):
        parts, done = [], ""
        for n in scored:
            before = _rendered(messages[:n], tokenizer, ask=True)
            through = _rendered(messages[: n + 1], tokenizer)
            if not (before.startswith(done) and through.startswith(before)):
                break
            said = through[len(before) :].rstrip()
            parts += [(before[len(done) :], False), (said, True)]
            done = before + said
        else:
            if parts:
                return _joined(parts, tokenizer)
    return plain(_rendered(messages, tokenizer, ask=messages[-1]["role"] == "user"), tokenizer)


def _rendered(messages: list[Message], tokenizer: Any, ask: bool = False) -> str:
    if not messages:
        return ""
    if not has_template(tokenizer):
        return "".join(f"{message['content']}\n" for message in messages)
    return str(templated(tokenizer, messages, tokenize=False, add_generation_prompt=ask, date_string=DATE))


def _joined(parts: Sequence[tuple[str, bool]], tokenizer: Any) -> Tokens:
    """Parts of one text, said by the model or not. Each is what it adds to the tokens of the text before it, as it will
    be when the model goes on behind a prompt; by itself where more text changes earlier tokens."""
    ids: list[int] = []
    said: list[bool] = []
    text = ""
    for part, own in parts:
        text += part
        longer = tokenizer.encode(text, add_special_tokens=False)
        if longer[: len(ids)] != ids:
            longer = ids + tokenizer.encode(part, add_special_tokens=False)
        said += [own] * (len(longer) - len(ids))
        ids = longer
    return Tokens(ids, [*said[1:], False])
