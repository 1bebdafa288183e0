"""What people hand us to answer: text, standard input, or a file of prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlx_skipspec.errors import SkipSpecError


def read_prompt(text: str) -> str:
    """`text` itself, or what standard input says when it is `-`.

    Raises:
        SkipSpecError: standard input is closed or not UTF-8, or there is nothing but white space.
    """
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except (OSError, ValueError, AttributeError) as error:
            raise SkipSpecError(
                f"Standard input cannot be read as UTF-8 text ({error}); pipe text, or give --prompt TEXT."
            ) from error
    if not text.strip():
        raise SkipSpecError("The prompt is empty; need some text. Give --prompt TEXT, or --prompt - and pipe it.")
    return text


def chat_ids(
    tokenizer: Any, prompt: str, system: str | None = None, template_config: dict[str, Any] | None = None
) -> list[int]:
    """Token ids of a question put through the model's chat template."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, **(template_config or {})))


def read_prompts(file: Path, limit: int | None = None) -> Iterator[tuple[str, str]]:
    """(id, prompt) of each line of a JSONL file; a line without "id" goes by its number.

    Raises:
        SkipSpecError: the file can't be read, or a line is no object with "prompt".
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SkipSpecError(f"{file} cannot be read ({error}); need a JSONL file with a \"prompt\" per line.") from error
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise SkipSpecError(f'{file} has no prompts; need JSONL with a "prompt" per line.')
    for number, line in numbered[:limit]:
        try:
            item = json.loads(line)
            yield str(item.get("id", number)), item["prompt"]
        except (ValueError, KeyError, AttributeError):
            raise SkipSpecError(f'{file}, line {number} is no JSON object with "prompt"; mend or drop it.') from None
