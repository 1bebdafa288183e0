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


@dataclass(frozen=True)
class Rest:
    """A text from `start` on. A long one is cut often; copying what is left each time took a square of its length."""

    text: Tokens
    start: int = 0

    def __len__(self) -> int:
        return len(self.text) - self.start

    def first(self, count: int) -> Tokens:
        return self.text[self.start : self.start + count]

    def after(self, count: int) -> Rest:
        return Rest(self.text, self.start + count)


def packed(texts: Iterator[Tokens], length: int) -> Iterator[Tokens]:
    """Windows of `length`. One that begins with a text goes on with the longest that fits, so that an answer mostly has
    its question in view; the last of a window may be cut, and begins again in a later one if it fits into one whole.
    A longer text is cut wherever a window is full. What fills no window at the end is dropped, and so is a window of
    which nothing is scored: of a long question's middle, say.
    """
    window = Tokens([], [])
    waiting: list[Rest] = []
    while True:
        while len(waiting) < LOOK and sum(map(len, waiting)) < LOOK * length:
            if (text := next(texts, None)) is None:
                break
            waiting.append(Rest(text))
        if not waiting:
            return
        room = length - len(window)
        fitting = [i for i, text in enumerate(waiting) if len(text) <= room]
        at = max(fitting, key=lambda i: len(waiting[i])) if len(window) and fitting else 0
        rest = waiting[at]
        window += rest.first(room)
        if len(rest) <= room:
            del waiting[at]
        elif len(rest) > length:
            waiting[at] = rest.after(room)
        if len(window) == length:
            if any(window.scored):
                yield window
            window = Tokens([], [])
