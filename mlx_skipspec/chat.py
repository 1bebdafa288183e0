"""The chat: questions in, answers and a line of figures out, until the person leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mlx_skipspec import chat_commands
from mlx_skipspec.api import Response
from mlx_skipspec.cli import note, say
from mlx_skipspec.conversation import Conversation
from mlx_skipspec.drafting import Drafting
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.messages import write_messages
from mlx_skipspec.report import status
from mlx_skipspec.sampling import Sampler
from mlx_skipspec.terminal import Reader, Screen, interrupts, read_question
from mlx_skipspec.thoughts import ThoughtStream

LONG = 512  # tokens of a prompt worth a bar
ByName = Callable[[str], Callable[[Sampler], Drafting]]  # a drafter; chooser.Chooser is one


class Chat:
    """A conversation, the person it is with, and the file it is kept in, if it is."""

    def __init__(
        self, talk: Conversation, screen: Screen, reader: Reader, chooser: ByName, file: Path | None = None
    ) -> None:
        self.talk, self.screen, self.reader, self.chooser, self.file = talk, screen, reader, chooser, file

    def run(self) -> None:
        """Talk until the person leaves. What cannot be done is said, and the conversation goes on.

        Over a pipe nobody reads that in time: the exit code is 2 then.
        """
        failed = False
        while True:
            try:
                if (line := read_question(self.reader)) is None:
                    break
                if line.startswith("/"):
                    chat_commands.run(self, line)
                elif line.strip():
                    self.answer(self.talk.ask(line[1:] if line.startswith(" /") else line))
            except SkipSpecError as error:
                note(f"error: {' '.join(str(error).splitlines())}")
                failed = True
            except EOFError:
                break
            except KeyboardInterrupt:
                if not self.reader.interactive:
                    raise
        if failed and not self.reader.interactive:
            sys.exit(2)

    def answer(self, steps: Generator[Response, None, None]) -> None:
        """Show an answer as it comes, and what it came to. Ctrl-C ends it; what was shown stays."""
        self.keep()  # with the question: a crash loses at most the answer
        thoughts: ThoughtStream | None = None
        last, shown = None, ""
        with interrupts() as pressed, closing(steps), closing(_Prefill(self.talk, pressed)) as prefill:
            self.talk.options["prompt_progress_callback"] = prefill
            try:
                for last in steps:
                    prefill.close()
                    thoughts = thoughts or self._thoughts()
                    shown += last.text
                    self._show(thoughts(last.text), last)
                    if pressed():
                        break
            except KeyboardInterrupt:
                pass
            except SkipSpecError:
                self.keep()  # without the question
                raise
        if last is None or thoughts is None:
            self.keep()
            self.screen.aside("Stopped before it began; the conversation is as it was.")
            return
        if last.finish_reason is None:  # some text waits for the next token, which does not come
            self._show(thoughts(self.talk.text_of_last()[len(shown) :]), last)
        self._show(thoughts.finish(), last)
        say("")
        self.keep()
        self.screen.aside(status(last, self.talk))
        self.screen.legend()

    def keep(self) -> None:
        """Write the conversation to its file, if it has one."""
        if self.file is not None:
            write_messages(self.file, self.talk.all_messages)

    def keep_in(self, file: Path) -> None:
        """Keep it in another file from now on.

        Raises:
            SkipSpecError: there is something else in it.
        """
        if file != self.file:
            check_free(file)
        write_messages(file, self.talk.all_messages)
        self.file = file

    def recall(self) -> None:
        """Say what conversation was read."""
        questions = sum(message.role == "user" for message in self.talk.messages)
        self.screen.aside(f"{self.file}: {questions} question{'s' * (questions != 1)} so far; it is kept there.")
        if self.talk.messages and self.talk.messages[-1].role == "user":
            self.screen.aside("The last one has no answer yet; /retry answers it.")

    def _thoughts(self) -> ThoughtStream:
        tokenizer, rendering = self.talk.tokenizer, self.talk.rendering
        opened = rendering.opens_thoughts(rendering.opening)
        return ThoughtStream(tokenizer.think_start, tokenizer.think_end, opened)

    def _show(self, parts: list[tuple[str, bool]], response: Response) -> None:
        for text, thought in parts:
            self.screen.piece(text, thought, response.source if response.from_draft else None)


def check_free(file: Path | None) -> None:
    """Refuse to write a conversation over something else, or where there is no folder."""
    if file is not None and not file.absolute().parent.is_dir():
        raise SkipSpecError(f"There is no folder {file.parent}; need one that is there to keep a conversation in.")
    if file is not None and os.path.lexists(file):
        raise SkipSpecError(f"{file} exists; need a new name. To go on with what is in it: --resume, or /load.")


class _Prefill:
    """Hears how far the prompt is read, and breaks off when Ctrl-C was pressed; a bar for one worth waiting for."""

    def __init__(self, talk: Conversation, pressed: Callable[[], bool]) -> None:
        self.talk, self.pressed = talk, pressed
        self.bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self.pressed():
            raise KeyboardInterrupt
        new = self.talk.kept.prefilled
        if self.bar is None and new >= LONG:
            self.bar = tqdm(total=new, unit="tok", desc="prompt", disable=None, leave=False)
        if self.bar is not None:
            self.bar.update(done - (total - new) - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
