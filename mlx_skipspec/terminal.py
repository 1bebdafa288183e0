"""The person: what is typed or piped in, what is shown, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click

from mlx_skipspec.cli import note, say
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.folders import cache_folder

QUOTES = '"""'  # around a question of several lines
COLOURS = ("cyan", "magenta", "yellow", "green")  # of drafters


class Reader(Protocol):
    """Where questions come from.

    Attributes:
        interactive: somebody is sitting there.
    """

    interactive: bool

    def line(self, continued: bool = False) -> str | None:
        """The next line, None at the end. Raises KeyboardInterrupt when Ctrl-C gives up what is being typed."""


def read_question(reader: Reader) -> str | None:
    """A line, or what stands between two of QUOTES over several; None at the end."""
    line = reader.line()
    if line is None or not line.lstrip().startswith(QUOTES):
        return line
    lines = [line.lstrip().removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        if (line := reader.line(continued=True)) is None:
            raise SkipSpecError(f"The question begun with {QUOTES} does not end; close it with {QUOTES}.")
        lines.append(line)
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")


class Piped:
    """Lines of standard input."""

    interactive = False

    def line(self, continued: bool = False) -> str | None:
        if sys.stdin is None:
            return None
        try:
            given = sys.stdin.buffer.readline().decode("utf-8")
        except (OSError, ValueError) as error:
            raise SkipSpecError(f"Standard input cannot be read as UTF-8 text ({error}); pipe text.") from error
        return given.rstrip("\r\n") if given else None


class Typed:
    """A line editor with history; Esc Enter puts in a line break."""

    interactive = True

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.output import ColorDepth

        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: Any) -> None:
            event.current_buffer.insert_text("\n")

        file = cache_folder() / "chat_history"
        history: History = InMemoryHistory()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # what somebody typed is nobody else's
            history = FileHistory(str(file))
        except OSError as error:
            note(f"note: what is typed cannot be kept in {file} ({error.strerror}), and is forgotten in the end")
        depth = None if colours_wanted() else ColorDepth.DEPTH_1_BIT
        self.session: Any = PromptSession(history=history, key_bindings=keys, color_depth=depth)

    def line(self, continued: bool = False) -> str | None:
        try:
            return str(self.session.prompt("… " if continued else "> "))
        except EOFError:
            return None


class Screen:
    """Shows an answer; with colours where they are wanted, without a single code of theirs elsewhere."""

    def __init__(self, show_drafts: bool = False, hide_thoughts: bool = False) -> None:
        self.colours = colours_wanted()
        self.show_drafts, self.hide_thoughts = show_drafts and self.colours, hide_thoughts
        self._sources: dict[str, str] = {}
        self._explained = 0  # of these
        self._hiding = False  # nothing of the answer has been shown since the last hidden thought

    def piece(self, text: str, thought: bool, source: str | None) -> None:
        """A piece of the answer; `source` is the drafter that guessed it, None for the target itself."""
        if thought and self.hide_thoughts:
            if not self._hiding:
                self.aside("thinking …")
            self._hiding = True
            return
        if self._hiding and not (text := text.lstrip("\n")):
            return
        self._hiding = False
        style: dict[str, Any] = {"dim": True} if thought else {}
        if self.show_drafts and source is not None:
            style["fg"] = self.colour(source)
        say(click.style(text, **style) if style and self.colours else text, nl=False)

    def colour(self, source: str) -> str:
        """A drafter's own, in the order they first come up."""
        return self._sources.setdefault(source, COLOURS[len(self._sources) % len(COLOURS)])

    def legend(self) -> None:
        """Say whose the colours are, once more have come up."""
        if len(self._sources) > self._explained:
            self._explained = len(self._sources)
            names = ", ".join(click.style(source, fg=colour) for source, colour in self._sources.items())
            click.echo(f"Tokens guessed by {names}; the others are the model's own.", err=True)

    def aside(self, text: str) -> None:
        """A line beside the conversation, on standard error."""
        dim = self.colours and sys.stderr is not None and sys.stderr.isatty()
        click.echo(click.style(text, dim=True) if dim else text, err=True)


def reader() -> Reader:
    """A line editor where somebody can use it, else the lines that are piped in."""
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return Typed() if terminal and os.environ.get("TERM") != "dumb" else Piped()


def colours_wanted() -> bool:
    """On a terminal that knows them, unless NO_COLOR is set (no-color.org)."""
    able = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return able and not os.environ.get("NO_COLOR")


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C raises nothing, wherever that might be; ask whether it was pressed."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
