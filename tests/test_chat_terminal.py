"""The chat as people meet it: on a terminal, and over a pipe."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoint
import pexpect
import pytest

# Python 3.12 and later warn of forks while mlx's threads run; the child becomes another program at once.
pytestmark = pytest.mark.filterwarnings("ignore:.*forkpty:DeprecationWarning")

TURNS = 50
ENDLESS = ["--max-tokens", "-1", "--logit-bias", f'{{"{checkpoint.EOS}": -1000}}']
CHAT = ["-m", "mlx_skipspec", "chat", "--drafter", "lookup"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("chat") / "model", max_position_embeddings=1 << 20)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    # a terminal that nobody looks at does not say where its cursor is
    return {**os.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}


class Terminal:
    def __init__(self, folder: Path, environment: dict[str, str], *flags: str) -> None:
        arguments = [*CHAT, "--model", str(folder), *flags]
        self.process: Any = pexpect.spawn(
            sys.executable, arguments, env=environment, encoding="utf-8", timeout=120, dimensions=(40, 250)
        )
        self.shown = ""
        self.sees("/help lists what else can be said")

    def sees(self, text: str) -> str:
        """Wait for a text; what was shown up to it."""
        self.process.expect_exact(text)
        self.shown += self.process.before + text
        return str(self.process.before)

    def types(self, text: str) -> None:
        self.process.send(text)

    def says(self, line: str, then: str) -> str:
        self.types(line + "\r")
        return self.sees(then)

    def asks(self, question: str) -> None:
        """Put a question and wait for the beginning of its answer, which is not the question's echo."""
        self.types(question + "\r")
        self.sees("\x1b[?2004l")  # the line editor lets go of the terminal
        self.process.expect("[a-z]{2}")

    def stops(self) -> None:
        """Ctrl-C in the middle of an answer."""
        self.process.sendintr()
        self.sees("; stopped]")

    def leaves(self, with_: str) -> int:
        self.types(with_)
        self.process.expect(pexpect.EOF)
        self.process.close()
        return int(self.process.exitstatus)


def roles(file: Path) -> list[str]:
    return [json.loads(line)["role"] for line in file.read_text(encoding="utf-8").splitlines()]


def last(file: Path) -> dict[str, str]:
    return json.loads(file.read_text(encoding="utf-8").splitlines()[-1])


def test_a_person_at_a_terminal(folder: Path, environment: dict[str, str], tmp_path: Path) -> None:
    first, other = tmp_path / "first.jsonl", tmp_path / "other.jsonl"
    here = Terminal(folder, environment, *ENDLESS, "--show-drafts")

    here.asks("hello world")
    here.stops()
    here.types("half a ques")
    here.process.sendintr()  # in the middle of typing
    here.says("/stats", "new in the last prompt")
    assert "answers     1 kept;" in here.shown

    here.says("/help", "Ctrl-D: leave.")
    for name in ["help", "reset", "system", "save", "load", "stats", "drafter", "temp", "undo", "retry", "quit"]:
        assert f"  /{name} " in here.shown
    here.says("/rety", "did you mean /retry?")
    here.says("/temp warm", "need a number")
    here.says("/temp 0.7", "drawn at temperature 0.7")
    here.says("/drafter skip", "need --sidecar DIR or --plan")  # this model has none
    here.says("/drafter none", "Drafting with none.")
    here.says("/system be kind", "message is set")
    here.says(f"/save {first}", "from now on after every turn")
    assert roles(first) == ["system", "user", "assistant"]

    here.asks("one\x1b\rtwo")  # Esc Enter
    here.stops()
    assert json.loads(first.read_text(encoding="utf-8").splitlines()[3])["content"] == "one\ntwo"
    here.says("/undo", "Taken back: one")
    assert roles(first) == ["system", "user", "assistant"]
    here.says('"""three', "…")
    here.asks('four"""')
    here.stops()
    assert json.loads(first.read_text(encoding="utf-8").splitlines()[3])["content"] == "three\nfour"
    here.asks("/retry")
    here.stops()
    assert len(roles(first)) == 5

    here.says("/reset", "keeps the old one")
    here.says(f"/save {first}", "exists; need a new name")
    here.says(f"/save {other}", "from now on")
    assert roles(other) == ["system"]
    here.says(f"/load {first}", "2 questions so far")
    assert here.leaves("/quit\r") == 0


def test_a_crash_loses_at_most_the_answer_and_fifty_turns_go_on(
    folder: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    file, piped = tmp_path / "talk.jsonl", tmp_path / "piped.jsonl"
    here = Terminal(folder, environment, *ENDLESS, "--save", str(file))
    here.asks("hello world")
    here.process.kill(signal.SIGKILL)
    here.process.expect(pexpect.EOF)
    assert last(file) == {"role": "user", "content": "hello world"}

    shutil.copy(file, piped)
    here = Terminal(folder, {**environment, "NO_COLOR": "1"}, "--max-tokens", "4", "--resume", str(file))
    here.says("/retry", "tokens per pass")
    for turn in range(TURNS):
        here.says(f"hello {turn}", "tokens per pass")
    assert here.leaves("\x04") == 0  # Ctrl-D
    assert roles(file) == ["user", "assistant"] * (TURNS + 1)

    lines = "".join(f"{line}\n" for line in ["/retry", *(f"hello {turn}" for turn in range(TURNS))])
    done = pipe(folder, environment, lines, "--max-tokens", "4", "--resume", str(piped), "--show-drafts")
    assert done.returncode == 0, done.stderr
    assert piped.read_bytes() == file.read_bytes()
    assert "\x1b" not in done.stdout + done.stderr
    said = [json.loads(line)["content"] for line in file.read_text(encoding="utf-8").splitlines()[1::2]]
    assert done.stdout == "".join(f"{text}\n" for text in said)
    assert done.stderr.count("tokens per pass") == TURNS + 1
    assert "--show-drafts needs colours" in done.stderr


def pipe(folder: Path, environment: dict[str, str], text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, *CHAT, "--model", str(folder), *flags]
    return subprocess.run(arguments, input=text, capture_output=True, text=True, env=environment, timeout=600)


def test_over_a_pipe_what_cannot_be_done_is_said_and_the_exit_code_is_2(
    folder: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    asked = '/bogus\n"""one\ntwo\n"""\n /help\n\n/save kept.jsonl\n/quit\nnever\n'
    done = subprocess.run(
        [sys.executable, *CHAT, "--model", str(folder), "--max-tokens", "3"],
        input=asked,
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "There is no command /bogus" in done.stderr
    assert done.stderr.count("error:") == 1
    messages = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [m["content"] for m in messages[::2]] == ["one\ntwo", "/help"]
