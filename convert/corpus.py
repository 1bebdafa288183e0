"""What training reads: text, conversations, and a model's own answers, as windows of token ids."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mlx_skipspec.convert.chats import item_tokens, plain
from mlx_skipspec.convert.packing import Tokens, packed
from mlx_skipspec.errors import SkipSpecError

CHUNK = 1 << 16  # characters tokenised at a time
LONGEST_LINE = 1 << 22  # characters of a JSONL line; a tokenizer takes minutes over more


def windows(
    files: Sequence[Path], tokenizer: Any, length: int, others: Mapping[str, Iterator[Any]] | None = None
) -> Iterator[Tokens]:
    """Windows of `length` ids, taken from the sources in turn, so that a small budget sees all of them: files, and by
    name `others`, iterators of items as a JSONL line holds them. Without any, the text every Python carries.

    In a `.jsonl` file each line is {"text"}, or {"messages"}, or {"prompt"} with an optional {"answer"}, which go
    through the model's own chat template; of these, only what the assistant says is scored. `packing` says how a window
    is filled.

    Raises:
        SkipSpecError: a file is missing, not text, of another shape, or gives not one window.
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
    if not found and read >= length:
        raise SkipSpecError(
            f"{name} has no window of {length} tokens with part of an answer; need longer windows or shorter questions."
        )
    if not found:
        raise SkipSpecError(f"{name} has only {read} tokens; need at least one window of {length}. Give more text.")


def _texts(file: Path, tokenizer: Any) -> Iterator[Tokens]:
    try:
        with file.open(encoding="utf-8-sig") as lines:  # Windows tools put a mark in front
            if file.suffix == ".jsonl":
                # a piece at a time: what is no JSONL may be one line of gigabytes
                for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE + 1), ""), 1):
                    if line.strip():
                        yield _line_tokens(line, tokenizer, f"{file}, line {number}")
            else:
                while chunk := lines.read(CHUNK):
                    yield plain(chunk, tokenizer)
    except UnicodeDecodeError as error:
        raise SkipSpecError(f"{file} is not UTF-8 text ({error.reason}); need plain text or JSONL.") from error
    except OSError as error:
        raise SkipSpecError(f"{file} cannot be read ({error.strerror}); give another --text.") from error


def _line_tokens(line: str, tokenizer: Any, where: str) -> Tokens:
    if len(line) > LONGEST_LINE:
        raise SkipSpecError(f"{where} is too long; need at most {LONGEST_LINE} characters. Split it into several.")
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        raise SkipSpecError(f"{where} is not JSON; need one object per line.") from None
    return item_tokens(item, tokenizer, where)
