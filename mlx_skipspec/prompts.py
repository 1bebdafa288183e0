"""What people hand us to answer: text, standard input, or a file of prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mlx_skipspec.errors import SkipSpecError, one_line

T = TypeVar("T")


class Prompt(NamedTuple):
    """A line of a file of prompts; `task` is its "category", which figures are grouped by."""

    id: str
    text: str
    task: str


def read_prompt(text: str) -> str:
    """`text` itself, or what standard input says when it is `-`.

    Raises:
        SkipSpecError: standard input is closed or not UTF-8, or there is nothing but white space.
    """
    if text == "-":
        if sys.stdin is None:
            raise SkipSpecError("Standard input is closed; pipe the prompt into it, or give --prompt TEXT.")
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except (OSError, ValueError) as error:
            raise SkipSpecError(
                f"Standard input cannot be read as UTF-8 text ({error}); pipe text, or give --prompt TEXT."
            ) from error
    if not text.strip():
        raise SkipSpecError("The prompt is empty; need some text. Give --prompt TEXT, or --prompt - and pipe it.")
    return check_unicode(text, "The prompt")


def check_unicode(text: str, name: str) -> str:
    """`text`, which a tokenizer can take: half of a surrogate pair is what Python makes of an argument's stray bytes.

    Raises:
        SkipSpecError: it is not.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SkipSpecError(f"{name} is not UTF-8 text (at character {error.start}); need whole characters.") from None
    return text


def chat_ids(
    tokenizer: Any, prompt: str, system: str | None = None, template_config: dict[str, Any] | None = None
) -> list[int]:
    """Token ids of a question put through the model's chat template."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    for message in messages:
        check_unicode(message["content"], f"The {message['role']}'s message")
    ids = templated(tokenizer, messages, **{"add_generation_prompt": True, **(template_config or {})})
    if not (isinstance(ids, list) and ids and all(type(token) is int for token in ids)):
        raise SkipSpecError(
            "The chat template gives no tokens with these arguments; give others, or --ignore-chat-template."
        )
    return ids


def templated(tokenizer: Any, messages: list[dict[str, str]], /, **arguments: Any) -> Any:
    """What the model's chat template makes of a conversation.

    Raises:
        SkipSpecError: the template refuses it (one without a place for a system message, say) or is itself at fault.
    """
    try:
        return tokenizer.apply_chat_template(messages, **arguments)
    except Exception as error:  # a template is a program: it can raise anything
        raise SkipSpecError(
            f"The model's chat template cannot render this ({one_line(error)}); "
            "change the messages or the arguments, or do without: mlx-skipspec generate --ignore-chat-template."
        ) from error


def read_prompts(file: Path, limit: int | None = None) -> Iterator[Prompt]:
    """Each line of a JSONL file, or the first `limit`; a line without "id" goes by its number.

    Raises:
        SkipSpecError: the file can't be read, or a line is no object with "prompt".
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # a mark of Windows tools; JSON may hold other breaks
    except (OSError, UnicodeDecodeError) as error:
        raise SkipSpecError(f'{file} cannot be read ({error}); need a JSONL file with a "prompt" per line.') from error
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise SkipSpecError(f'{file} has no prompts; need JSONL with a "prompt" per line.')
    for number, line in numbered[:limit]:
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            item = None
        prompt = item.get("prompt") if isinstance(item, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            raise SkipSpecError(f'{file}, line {number} is no JSON object with a "prompt" of text; mend or drop it.')
        text = check_unicode(prompt, f"{file}, line {number}: the prompt")
        yield Prompt(str(item.get("id", number)), text, str(item.get("category", "none")))


def even_sample(items: Sequence[T], limit: int | None) -> Sequence[T]:
    """`limit` of them from all over: a file of prompts is usually sorted by task."""
    if limit is None or limit >= len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]
