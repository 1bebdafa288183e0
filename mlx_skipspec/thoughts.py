"""What a thinking model writes between two tags before it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def split_thoughts(tokenizer: Any, ids: Sequence[int], opened: bool = False) -> tuple[list[int], list[int]]:
    """Tokens of thoughts, tags included, and of the answer behind them; `opened` says the prompt has begun them.

    Thoughts that were begun and not ended are all there is; a text without tags is all answer.
    """
    ids = list(ids)
    if not tokenizer.has_thinking:
        return [], ids
    end = tokenizer.rfind_think_end(ids)
    if end >= 0:
        at = end + len(tokenizer.think_end_tokens)
        return ids[:at], ids[at:]
    return (ids, []) if opened or tokenizer.find_think_start(ids) >= 0 else ([], ids)


class ThoughtStream:
    """Tells thoughts from the answer while the text appears.

    Args:
        start, end: the tags; None for a model that has none, whose text is all answer.
        thinking: whether the prompt has already opened the thoughts.
    """

    def __init__(self, start: str | None, end: str | None, thinking: bool = False) -> None:
        self.tags = {False: start or "", True: end or ""}
        self.thinking = thinking
        self._held = ""

    def __call__(self, more: str) -> list[tuple[str, bool]]:
        """The next piece of text, cut into parts; True with what is thought. Tags belong to the thoughts."""
        text, self._held, parts = self._held + more, "", []
        while (tag := self.tags[self.thinking]) and (at := text.find(tag)) >= 0:
            cut = at + len(tag) if self.thinking else at
            parts.append((text[:cut], self.thinking))
            if not self.thinking:
                parts.append((tag, True))
            text, self.thinking = text[at + len(tag) :], not self.thinking
        begun = max((n for n in range(1, len(tag)) if text.endswith(tag[:n])), default=0)
        self._held = text[len(text) - begun :]
        parts.append((text[: len(text) - begun], self.thinking))
        return [part for part in parts if part[0]]

    def finish(self) -> list[tuple[str, bool]]:
        """What was held back because it might have become a tag."""
        held, self._held = self._held, ""
        return [(held, self.thinking)] if held else []
