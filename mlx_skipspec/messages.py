"""The messages of a conversation, and the file they are kept in: JSON lines in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.folders import whole_file

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Message:
    """What somebody said.

    Attributes:
        content: the text; of an answer, without the thoughts in front of it.
        thoughts: what a thinking model wrote first; "reasoning_content" in files.
        ids: of an answer given here, its tokens as they were generated, thoughts included, without what ended it.
        after: the template's text these tokens were generated behind, since the answer before.
    """

    role: str
    content: str
    thoughts: str = ""
    ids: tuple[int, ...] | None = None
    after: str = ""

    def as_json(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content} | (
            {"reasoning_content": self.thoughts} if self.thoughts else {}
        )


def write_messages(file: Path, messages: Sequence[Message]) -> None:
    """Write them all, one a line; a file that was there is replaced in one go.

    Raises:
        SkipSpecError: it cannot be written; what was there still is.
    """
    lines = [json.dumps(message.as_json(), ensure_ascii=False) + "\n" for message in messages]
    try:
        with whole_file(file) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise SkipSpecError(
            f"Writing {file} failed ({error.strerror or error}); need a file in a folder that can be written. "
            "Make room, or give another name."
        ) from error


def read_messages(file: Path) -> list[Message]:
    """The messages of a file: a system's, if there is one, then question and answer in turns; the last question may
    have no answer yet.

    Raises:
        SkipSpecError: the file cannot be read, or holds something else.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # a mark of Windows tools; JSON may hold other breaks
    except (OSError, UnicodeDecodeError) as error:
        raise SkipSpecError(f"{file} cannot be read ({error}); need a conversation that /save wrote.") from error
    messages: list[Message] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        message = _message(line)
        wanted = ("system", "user") if not messages else ("assistant",) if messages[-1].role == "user" else ("user",)
        if message is None or message.role not in wanted:
            raise SkipSpecError(
                f"{file}, line {number}: need an object with the role {' or '.join(wanted)} and a content of text, "
                "as /save writes it. Mend the line or drop it."
            )
        messages.append(message)
    return messages


def _message(line: str) -> Message | None:
    try:
        given: Any = json.loads(line)
        role, content, thoughts = given["role"], given["content"], given.get("reasoning_content") or ""
        texts = all(isinstance(text, str) for text in (role, content, thoughts))
        (content + thoughts).encode("utf-8")  # half of a surrogate pair is no text
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return Message(role, content, thoughts) if texts and role in ROLES else None
