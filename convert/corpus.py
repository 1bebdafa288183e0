"""Text files as windows of token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mlx_skipspec.errors import SkipSpecError

CHUNK = 1 << 16  # characters tokenised at a time


def windows(files: list[Path], tokenizer: Any, length: int) -> Iterator[list[int]]:
    """Windows of `length` ids, taken from the files in turn, so that a small budget sees all of them.

    A file of plain text is cut where a window is full. In a `.jsonl` file each line is {"text"}, or {"prompt"} with an
    optional {"answer"} that go through the model's own chat template.

    Raises:
        SkipSpecError: a file is missing, not text, of another shape, or too short for one window.
    """
    for row in zip_longest(*(_windows_of(file, tokenizer, length) for file in files)):
        yield from (window for window in row if window is not None)


def built_in() -> str:
    """Technical English every Python carries: the help texts of its language reference (PSF licence)."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics.values())


def _windows_of(file: Path, tokenizer: Any, length: int) -> Iterator[list[int]]:
    held: list[int] = []
    found = False
    for text in _texts(file, tokenizer):
        held += tokenizer.encode(text, add_special_tokens=False)
        while len(held) >= length:
            yield held[:length]
            held, found = held[length:], True
    if not found:
        raise SkipSpecError(
            f"{file} has only {len(held)} tokens; need at least one window of {length}. Give more text."
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


def _line_text(line: str, tokenizer: Any, where: str) -> str:
    try:
        item = json.loads(line)
    except ValueError:
        raise SkipSpecError(f"{where} is not JSON; need one object per line.") from None
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        return item["text"]
    if not isinstance(item, dict) or not isinstance(item.get("prompt"), str):
        raise SkipSpecError(f'{where} has no "text" and no "prompt"; need one of them.')
    if not tokenizer.has_chat_template:
        return f"{item['prompt']}\n{item.get('answer', '')}\n"
    messages = [{"role": "user", "content": item["prompt"]}]
    if "answer" in item:
        messages.append({"role": "assistant", "content": item["answer"]})
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt="answer" not in item)
