"""What training reads: text, conversations, and a model's own answers, as windows of token ids."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mlx_skipspec.convert.packing import Tokens, packed
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.prompts import check_unicode, templated

CHUNK = 1 << 16  # characters tokenised at a time
LONGEST_LINE = 1 << 22  # characters of a JSONL line; a tokenizer takes minutes over more
CHAT_KEYS = ("role", "content")


def windows(
    files: Sequence[Path], tokenizer: Any, length: int, others: Mapping[str, Iterator[Any]] | None = None
) -> Iterator[Tokens]:
    """Windows of `length` ids, taken from the sources in turn, so that a small budget sees all of them: files, and by
    name `others`, iterators of items as a JSONL line holds them. Without any, the text every Python carries.

    In a `.jsonl` file each line is {"text"}, or {"messages"}, or {"prompt"} with an optional {"answer"}, which go
    through the model's own chat template; of these, only what the assistant says is scored. `packing` says how a window
    is filled.

    Raises:
        SkipSpecError: a file is missing, not text, of another shape, or too short for one window.
    """
    sources = [(str(file), _texts(file, tokenizer)) for file in files]
    for name, items in (others or {}).items():
        sources.append((name, (item_tokens(item, tokenizer, name) for item in items)))
    sources = sources or [("Python's help", (plain(text, tokenizer) for text in _chunks(built_in())))]
    for row in zip_longest(*(_windows_of(name, texts, length) for name, texts in sources)):
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


def _windows_of(name: str, texts: Iterator[Tokens], length: int) -> Iterator[Tokens]:
    read = 0

    def counted() -> Iterator[Tokens]:
        nonlocal read
        for text in texts:
            read += len(text)
            yield text

    found = False
    for window in packed(counted(), length):
        yield window
        found = True
    if not found:
        raise SkipSpecError(f"{name} has only {read} tokens; need at least one window of {length}. Give more text.")


def _texts(file: Path, tokenizer: Any) -> Iterator[Tokens]:
    try:
        with file.open(encoding="utf-8") as lines:
            if file.suffix == ".jsonl":
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _line_tokens(line, tokenizer, f"{file}, line {number}")
            else:
                while chunk := lines.read(CHUNK):
                    yield plain(chunk, tokenizer)
    except UnicodeDecodeError as error:
        raise SkipSpecError(f"{file} is not UTF-8 text (byte {error.start}); need plain text or JSONL.") from error
    except OSError as error:
        raise SkipSpecError(f"{file} cannot be read ({error.strerror}); give another --text.") from error


def plain(text: str, tokenizer: Any, scored: bool = True) -> Tokens:
    """A text without a form."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Tokens(ids, [scored] * len(ids))


def has_template(tokenizer: Any) -> bool:
    """Whether chats have a form of their own; transformers' tokenizers don't say it in a word."""
    return bool(getattr(tokenizer, "has_chat_template", getattr(tokenizer, "chat_template", None) is not None))


def _line_tokens(line: str, tokenizer: Any, where: str) -> Tokens:
    if len(line) > LONGEST_LINE:
        raise SkipSpecError(f"{where} has {len(line)} characters; need at most {LONGEST_LINE}. Split it into several.")
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        raise SkipSpecError(f"{where} is not JSON; need one object per line.") from None
    return item_tokens(item, tokenizer, where)


def item_tokens(item: Any, tokenizer: Any, where: str) -> Tokens:
    """Tokens of {"text"}, or of what the model's chat template makes of {"messages"}, or of {"prompt"} and {"answer"}.

    Raises:
        SkipSpecError: it is none of them.
    """
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        return plain(check_unicode(item["text"], f"{where}: the text"), tokenizer)
    if isinstance(item, dict) and "messages" in item:
        return _conversation(_checked(item["messages"], where), tokenizer)
    if not isinstance(item, dict) or not isinstance(item.get("prompt"), str):
        raise SkipSpecError(f'{where} has no "text", "messages" or "prompt"; need one of them.')
    prompt, answer = check_unicode(item["prompt"], f"{where}: the prompt"), item.get("answer", "")
    if not isinstance(answer, str):
        raise SkipSpecError(f'{where} has an "answer" of {answer!r}; need text, or none.')
    check_unicode(answer, f"{where}: the answer")
    messages = [{"role": "user", "content": prompt}]
    if "answer" in item:
        messages.append({"role": "assistant", "content": answer})
    return _conversation(messages, tokenizer)


def _checked(messages: Any, where: str) -> list[dict[str, str]]:
    """A conversation in the OpenAI message shape."""
    good = isinstance(messages, list) and messages
    if not good or not all(isinstance(m, dict) and all(isinstance(m.get(k), str) for k in CHAT_KEYS) for m in messages):
        raise SkipSpecError(f'{where}: "messages" is no list of {{"role": text, "content": text}}; mend or drop it.')
    return [{key: check_unicode(m[key], f"{where}: a message") for key in CHAT_KEYS} for m in messages]


def _conversation(messages: list[dict[str, str]], tokenizer: Any) -> Tokens:
    """Scored is what the assistant says with the end of its turn. Each turn's prompt is tokenised alone, as it will be
    when it is asked. Everything is scored where nobody answers, or where a template rewrites earlier turns.
    """
    found, done = Tokens([], []), ""
    for n, message in enumerate(messages):
        if message["role"] == "assistant":
            before = _rendered(messages[:n], tokenizer, ask=True)
            through = _rendered(messages[: n + 1], tokenizer).rstrip()
            if not (before.startswith(done) and through.startswith(before)):
                return plain(_rendered(messages, tokenizer), tokenizer)
            found += plain(before[len(done) :], tokenizer, False) + plain(through[len(before) :], tokenizer)
            done = through
    whole = _rendered(messages, tokenizer, ask=messages[-1]["role"] == "user")
    if not done or not whole.startswith(done):
        return plain(whole, tokenizer)
    found += plain(whole[len(done) :], tokenizer, False)
    return Tokens(found.ids, [*found.scored[1:], False])


def _rendered(messages: list[dict[str, str]], tokenizer: Any, ask: bool = False) -> str:
    if not messages:
        return ""
    if not has_template(tokenizer):
        return "".join(f"{message['content']}\n" for message in messages)
    return str(templated(tokenizer, messages, tokenize=False, add_generation_prompt=ask))
