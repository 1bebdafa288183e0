"""Text files as windows of token ids."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.prompts import check_unicode, templated

CHUNK = 1 << 16  # characters tokenised at a time
LONGEST_LINE = 1 << 22  # characters of a JSONL line; a tokenizer takes minutes over more
CHAT_KEYS = ("role", "content")


def windows(
    files: Sequence[Path], tokenizer: Any, length: int, others: Mapping[str, Iterator[Any]] | None = None
) -> Iterator[list[int]]:
    """Windows of `length` ids, taken from the sources in turn, so that a small budget sees all of them: files, and by
    name `others`, iterators of items as a JSONL line holds them. Without any, the text every Python carries.

    A file of plain text is cut where a window is full. In a `.jsonl` file each line is {"text"}, or {"messages"}, or
    {"prompt"} with an optional {"answer"}, which go through the model's own chat template.

    Raises:
        SkipSpecError: a file is missing, not text, of another shape, or too short for one window.
    """
    sources = [(str(file), _texts(file, tokenizer)) for file in files]
    for name, items in (others or {}).items():
        sources.append((name, (item_text(item, tokenizer, name) for item in items)))
    sources = sources or [("Python's help", _chunks(built_in()))]
    for row in zip_longest(*(_windows_of(name, texts, tokenizer, length) for name, texts in sources)):
        yield from (window for window in row if window is not None)


def built_in() -> str:
    """Technical English every Python carries: the help texts of its language reference (PSF licence)."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics.values())


def check_files(files: Sequence[Path]) -> None:
    """Refuse what is no file, before a model is loaded to read it.

    Raises:
        SkipSpecError: one is missing, or a folder.
    """
    for file in files:
        if not os.path.exists(file) or os.path.isdir(file):
            raise SkipSpecError(f"{file} is no file; need plain text or JSONL. Give another --text.")


def _chunks(text: str) -> Iterator[str]:
    return (text[i : i + CHUNK] for i in range(0, len(text), CHUNK))


def _windows_of(name: str, texts: Iterator[str], tokenizer: Any, length: int) -> Iterator[list[int]]:
    held: list[int] = []
    found = False
    for text in texts:
        held += tokenizer.encode(text, add_special_tokens=False)
        while len(held) >= length:
            yield held[:length]
            held, found = held[length:], True
    if not found:
        raise SkipSpecError(
            f"{name} has only {len(held)} tokens; need at least one window of {length}. Give more text."
        )


def _texts(file: Path, tokenizer: Any) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as lines:
            if file.suffix == ".jsonl":
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _line_text(line, tokenizer, f"{file}, line {number}")
            else:
                while chunk := lines.read(CHUNK):
                    yield chunk
    except UnicodeDecodeError as error:
        raise SkipSpecError(f"{file} is not UTF-8 text (byte {error.start}); need plain text or JSONL.") from error
    except OSError as error:
        raise SkipSpecError(f"{file} cannot be read ({error.strerror}); give another --text.") from error


def has_template(tokenizer: Any) -> bool:
    """Whether chats have a form of their own; transformers' tokenizers don't say it in a word."""
    return bool(getattr(tokenizer, "has_chat_template", getattr(tokenizer, "chat_template", None) is not None))


def _line_text(line: str, tokenizer: Any, where: str) -> str:
    if len(line) > LONGEST_LINE:
        raise SkipSpecError(f"{where} has {len(line)} characters; need at most {LONGEST_LINE}. Split it into several.")
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        raise SkipSpecError(f"{where} is not JSON; need one object per line.") from None
    return item_text(item, tokenizer, where)


def item_text(item: Any, tokenizer: Any, where: str) -> str:
    """The text of {"text"}, or what the model's chat template makes of {"messages"}, or of {"prompt"} and {"answer"}.

    Raises:
        SkipSpecError: it is none of them.
    """
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        return check_unicode(item["text"], f"{where}: the text")
    if isinstance(item, dict) and "messages" in item:
        return _chat(item["messages"], tokenizer, where)
    if not isinstance(item, dict) or not isinstance(item.get("prompt"), str):
        raise SkipSpecError(f'{where} has no "text", "messages" or "prompt"; need one of them.')
    prompt, answer = check_unicode(item["prompt"], f"{where}: the prompt"), item.get("answer", "")
    if not isinstance(answer, str):
        raise SkipSpecError(f'{where} has an "answer" of {answer!r}; need text, or none.')
    check_unicode(answer, f"{where}: the answer")
    if not has_template(tokenizer):
        return f"{prompt}\n{answer}\n"
    messages = [{"role": "user", "content": prompt}]
    if "answer" in item:
        messages.append({"role": "assistant", "content": answer})
    return templated(tokenizer, messages, tokenize=False, add_generation_prompt="answer" not in item)


def _chat(messages: Any, tokenizer: Any, where: str) -> str:
    """A conversation in the OpenAI message shape."""
    good = isinstance(messages, list) and messages
    if not good or not all(isinstance(m, dict) and all(isinstance(m.get(k), str) for k in CHAT_KEYS) for m in messages):
        raise SkipSpecError(f'{where}: "messages" is no list of {{"role": text, "content": text}}; mend or drop it.')
    messages = [{key: check_unicode(m[key], f"{where}: a message") for key in CHAT_KEYS} for m in messages]
    if not has_template(tokenizer):
        return "".join(f"{m['content']}\n" for m in messages)
    return templated(tokenizer, messages, tokenize=False)
