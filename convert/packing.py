"""Texts as windows of token ids, and which positions of them training is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LOOK = 64  # texts waiting for a place


@dataclass(frozen=True)
class Tokens:
    """Token ids, and for each whether training is for what follows it: what the model itself says, in a conversation;
    everything, in other text."""

    ids: list[int]
    scored: list[bool]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Tokens:
        return Tokens(self.ids[part], self.scored[part])

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.ids + other.ids, self.scored + other.scored)


def packed(texts: Iterator[Tokens], length: int) -> Iterator[Tokens]:
    """Windows of `length`. One that begins with a text goes on with the longest that fits, so that an answer mostly has
    its question in view; the last of a window may be cut, and begins again in a later one if it fits into one whole.
    A longer text is cut wherever a window is full. What fills no window at the end is dropped, and so is a window of
    which nothing is scored: of a long question's middle, say.
    """
    window, waiting = Tokens([], []), []
    while True:
        while len(waiting) < LOOK and sum(map(len, waiting)) < LOOK * length:
            if (text := next(texts, None)) is None:
                break
            waiting.append(text)
        if not waiting:
            return
        room = length - len(window)
        fitting = [i for i, text in enumerate(waiting) if len(text) <= room]
        at = max(fitting, key=lambda i: len(waiting[i])) if len(window) and fitting else 0
        text = waiting[at]
        window += text[:room]
        if len(text) <= room:
            del waiting[at]
        elif len(text) > length:
            waiting[at] = text[room:]
        if len(window) == length:
            if any(window.scored):
                yield window
            window = Tokens([], [])
