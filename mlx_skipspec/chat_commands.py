"""What a person can say to the chat instead of a question."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlx_skipspec.drafting import CHOICES
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.messages import read_messages
from mlx_skipspec.report import conversation_summary

if TYPE_CHECKING:
    from mlx_skipspec.chat import Chat


class Command(NamedTuple):
    """`takes` names the argument, and is empty where there is none; `run` does it."""

    takes: str
    help: str
    run: Callable[[Chat, str], None]


def run(chat: Chat, line: str) -> None:
    """Do what a line that begins with a slash says.

    Raises:
        SkipSpecError: there is no such command, or it can't be done.
    """
    name, _, argument = line[1:].strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        close = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
        meant = f"did you mean /{close[0]}? " if close else ""
        raise SkipSpecError(
            f"There is no command /{name[:80]}; {meant}/help lists them. To ask it, begin the line with a space."
        )
    argument = argument.strip()
    if argument and not command.takes:
        raise SkipSpecError(f"/{name} takes nothing behind it, and got {argument[:80]!r}; drop that.")
    if not argument and command.takes and not command.takes.startswith("["):
        raise SkipSpecError(f"/{name} needs {command.takes} behind it: {command.help}")
    command.run(chat, argument)


def _help(chat: Chat, _: str) -> None:
    for name, command in COMMANDS.items():
        chat.screen.aside(f"  {f'/{name} {command.takes}':<16} {command.help}")
    chat.screen.aside('Esc Enter, or lines between """ and """: several lines. Ctrl-C: stop. Ctrl-D: leave.')


def _reset(chat: Chat, _: str) -> None:
    chat.talk.restart()
    kept = f"; {chat.file} keeps the old one" if chat.file else ""
    chat.file = None
    chat.screen.aside(f"A new conversation{kept}.")


def _system(chat: Chat, text: str) -> None:
    chat.talk.system = text or None
    chat.keep()
    chat.screen.aside("The system's message is set." if text else "There is no system's message any more.")


def _save(chat: Chat, name: str) -> None:
    chat.keep_in(Path(name).expanduser())
    chat.screen.aside(f"Kept in {chat.file}, from now on after every turn.")


def _load(chat: Chat, name: str) -> None:
    file = Path(name).expanduser()
    chat.talk.restart(read_messages(file))
    chat.file = file
    chat.recall()


def _stats(chat: Chat, _: str) -> None:
    chat.screen.aside(conversation_summary(chat.talk))


def _drafter(chat: Chat, name: str) -> None:
    if name not in CHOICES:
        raise SkipSpecError(f"There is no drafter {name[:80]!r}; need one of {', '.join(CHOICES)}.")
    chat.talk.decide(chat.talk.sampler, chat.chooser(name))
    chat.screen.aside(f"Drafting with {chat.talk.drafting.mode}.")


def _temp(chat: Chat, value: str) -> None:
    try:
        number = float(value)
    except ValueError:
        raise SkipSpecError(f"/temp got {value[:80]!r}; need a number, like /temp 0.7.") from None
    chat.talk.decide(replace(chat.talk.sampler, temperature=number))
    chat.screen.aside("Answers are the likeliest." if not number else f"Answers are drawn at temperature {number:g}.")


def _undo(chat: Chat, _: str) -> None:
    taken = chat.talk.undo()
    chat.keep()
    chat.screen.aside(f"Taken back: {taken if len(taken) < 80 else taken[:79] + '…'}")


def _retry(chat: Chat, _: str) -> None:
    if not chat.talk.sampler.temperature:
        chat.screen.aside("At temperature 0 it is the same answer; /temp 0.7 draws others.")
    chat.answer(chat.talk.retry())


def _quit(chat: Chat, _: str) -> None:
    raise EOFError


COMMANDS = {
    "help": Command("", "List these.", _help),
    "reset": Command("", "Begin a new conversation; the system's message stays.", _reset),
    "system": Command("[TEXT]", "Set the system's message, or without TEXT take it away.", _system),
    "save": Command("FILE", "Keep the conversation in FILE, now and after every turn.", _save),
    "load": Command("FILE", "Go on with the conversation in FILE, and keep it there.", _load),
    "stats": Command("", "Show what the conversation came to so far.", _stats),
    "drafter": Command("NAME", f"Draft with {', '.join(CHOICES)}.", _drafter),
    "temp": Command("T", "Draw at temperature T; 0 takes the likeliest tokens.", _temp),
    "undo": Command("", "Take back the last question and its answer.", _undo),
    "retry": Command("", "Answer the last question again.", _retry),
    "quit": Command("", "Leave; Ctrl-D does so too.", _quit),
}
