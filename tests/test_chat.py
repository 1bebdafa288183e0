"""The chat itself: what is said to a question, a command, a failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chatting import Script, drafting, model
from test_rendering import DROPS

from mlx_skipspec import chat as module
from mlx_skipspec.chat import Chat
from mlx_skipspec.chat_commands import COMMANDS
from mlx_skipspec.conversation import Conversation
from mlx_skipspec.messages import Message
from mlx_skipspec.terminal import Screen

Talk = Callable[..., Chat]


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Runs a chat on a script; what the model said is in `said`, all else in capsys's standard error."""

    def run(*lines: Any, interactive: bool = True, file: Path | None = None, **options: Any) -> Chat:
        target, tokenizer = options.pop("model", None) or model()
        screen = Screen(**{name: options.pop(name) for name in ("show_drafts", "hide_thoughts") if name in options})
        drafter = options.pop("drafter", "none")
        options = {"max_tokens": 5, "notify": screen.aside, **options}
        conversation = Conversation(target, tokenizer, choose=drafting(target, drafter), **options)
        here = Chat(
            conversation,
            screen,
            Script(*lines, interactive=interactive),
            lambda name: drafting(target, {"auto": "paced"}.get(name, name)),
            file,
        )
        here.run()
        return here

    return run


def test_every_command_has_its_line_of_help(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    talk("/help")
    shown = capsys.readouterr().err
    for name, command in COMMANDS.items():
        assert f"/{name} {command.takes}".strip() in shown
        assert command.help in shown


@pytest.mark.parametrize(
    ("line", "kindly"),
    [
        ("/halp", "did you mean /help?"),
        ("/zzz", "There is no command /zzz; /help lists them. To ask it, begin the line with a space."),
        ("/", "There is no command /;"),
        ("/undo twice", "/undo takes nothing behind it"),
        ("/temp", "/temp needs T behind it"),
        ("/temp -1", "need a number of at least 0"),
        ("/temp nan", "temperature=nan"),
        ("/drafter", "/drafter needs NAME"),
        ("/drafter oracle", "need one of auto, none, skip, lookup"),
        ("/undo", "nothing to take back"),
        ("/retry", "no question to answer again"),
        ("/load missing.jsonl", "cannot be read"),
        ("/save no/such/folder/x", "There is no folder no/such/folder"),
    ],
)
def test_what_cannot_be_done_is_said_and_the_chat_goes_on(
    line: str, kindly: str, talk: Talk, capsys: pytest.CaptureFixture[str]
) -> None:
    here = talk(line, "hello")
    assert kindly in capsys.readouterr().err
    assert len(here.talk.messages) == 2


def test_over_a_pipe_a_failure_is_the_exit_code_in_the_end(talk: Talk) -> None:
    with pytest.raises(SystemExit, match="2"):
        talk("/bogus", "hello", interactive=False)
    assert talk("hello", interactive=False).talk.messages
    with pytest.raises(KeyboardInterrupt):
        talk(KeyboardInterrupt(), interactive=False)


def test_ctrl_c_while_typing_drops_the_line_only(talk: Talk) -> None:
    here = talk("hello", KeyboardInterrupt(), "world")
    assert [m.content for m in here.talk.messages[::2]] == ["hello", "world"]


def test_the_status_line_counts(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    here = talk("hello world hello world", drafter="liar", max_tokens=30, model=model(eos=(1,)))
    shown = capsys.readouterr().err
    stats, used = here.talk.stats, len(here.talk.kept.held) + 1
    assert f"{stats.tokens_per_pass:.2f} tokens per pass, accepted/drafted {stats.accepted}/{stats.drafted}" in shown
    assert f"context {used} of 4096; cut off: it was long enough]" in shown
    talk("hello", max_kv_size=40)
    assert ", the newest 40 seen" in capsys.readouterr().err


def test_stats_are_of_the_whole_conversation(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    here = talk("hello", "world", "/stats")
    shown = capsys.readouterr().err
    assert f"answers     2 kept; {here.talk.stats.tokens} tokens generated in" in shown
    assert f"new in the last prompt: {here.talk.kept.prefilled}\n" in shown


def test_temperature_and_drafter_act_from_the_next_answer_on(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    here = talk("/temp 0.8", "/drafter auto", "hello")
    assert here.talk.sampler.temperature == 0.8
    assert here.talk.drafting.mode == "paced"
    first = here.talk.messages[-1].ids
    here.reader = Script("/retry")
    here.run()
    assert here.talk.messages[-1].ids != first
    assert "same answer" not in capsys.readouterr().err
    talk("hello", "/retry")
    assert "At temperature 0 it is the same answer" in capsys.readouterr().err


def test_a_conversation_is_written_with_the_question_and_again_with_the_answer(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, written = tmp_path / "talk.jsonl", []
    keep = module.write_messages
    monkeypatch.setattr(
        module, "write_messages", lambda file, messages: (written.append(len(messages)), keep(file, messages))
    )
    talk("/system be kind", "hello", "/undo", "world", "/system", file=file)
    assert written == [1, 2, 3, 1, 2, 3, 2]
    assert [json.loads(line)["role"] for line in file.read_text().splitlines()] == ["user", "assistant"]


def test_a_file_that_cannot_be_written_stops_the_answer_not_the_chat(
    talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "folder" / "talk.jsonl"
    file.parent.mkdir()
    here = talk("hello", lambda: file.parent.rmdir() if not file.unlink() else None, "world", file=file)
    assert "Writing" in capsys.readouterr().err
    assert here.talk.messages[-1].content == "world"


def test_a_question_that_cannot_be_asked_is_neither_kept_nor_in_the_way(
    talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "talk.jsonl"
    here = talk("hello", "x" * 130, "world", file=file, model=model(max_position_embeddings=120))
    assert "the model's context 120" in capsys.readouterr().err
    assert [m.content for m in here.talk.messages[::2]] == ["hello", "world"]
    assert len(file.read_text().splitlines()) == 4


def test_load_goes_on_where_a_conversation_was_left(
    talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "talk.jsonl"
    talk("/system be kind", "hello", file=file)
    with file.open("a") as more:
        more.write(json.dumps({"role": "user", "content": "and?"}))
    here = talk("other", f"/load {file}", "/retry")
    assert "2 questions so far" in (shown := capsys.readouterr().err)
    assert "no answer yet; /retry" in shown
    assert here.talk.system == "be kind"
    assert [m.role for m in here.talk.messages] == ["user", "assistant"] * 2
    assert len(file.read_text().splitlines()) == 5


def test_a_reset_leaves_the_file_alone(talk: Talk, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    here = talk("hello", "/reset", "world", file=file)
    assert here.file is None
    assert json.loads(file.read_text().splitlines()[0])["content"] == "hello"
    assert [m.content for m in here.talk.messages[:1]] == ["world"]


def test_the_model_sees_a_conversation_only_once_and_whole(talk: Talk) -> None:
    here = talk("hello", "world", system="be kind")
    text = here.talk.tokenizer.decode(here.talk.kept.held)
    assert [text.count(words) for words in ("be kind", "hello", "world")] == [1, 1, 1]


def test_text_that_waits_for_more_is_shown_when_the_answer_is_stopped(
    talk: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = talk("hello", max_tokens=9, model=model(eos=(1,))).talk.messages[-1].content
    capsys.readouterr()
    monkeypatch.setattr(module, "interrupts", lambda: Pressed(after=3))
    here = talk("hello", stop=[whole[1:] + "and more"], max_tokens=9, model=model(eos=(1,)))
    said = here.talk.messages[-1].content
    assert 1 < len(said) < len(whole)  # all but one character of it had to wait
    shown = capsys.readouterr()
    assert shown.out == said + "\n"
    assert "; stopped]" in shown.err


class Pressed:
    """Ctrl-C that comes after so many looks."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __enter__(self) -> Callable[[], bool]:
        return self.look

    def __exit__(self, *_: object) -> None: ...

    def look(self) -> bool:
        self.after -= 1
        return self.after < 0


def test_ctrl_c_before_the_answer_takes_the_question_back(
    talk: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "interrupts", lambda: Pressed(after=0))
    here = talk("hello", file=tmp_path / "talk.jsonl")
    assert here.talk.messages == []
    assert (tmp_path / "talk.jsonl").read_text() == ""
    assert "the conversation is as it was" in capsys.readouterr().err


def test_a_thinking_models_thoughts_go_to_the_file_and_not_into_the_answer(talk: Talk, tmp_path: Path) -> None:
    thinking = model(template=DROPS, think=True, eos=(1,))
    here = talk(model=thinking)
    ids = here.talk.rendering.encode("<think>\nhello\n</think>\n\nworld")
    here.talk.messages.append(Message("user", "well?"))
    here.talk._prompt()
    said = here.talk.rendering.message([*ids, 1], "<think>\nhello\n</think>\n\nworld")
    assert (said.content, said.thoughts) == ("world", "hello")
    assert said.as_json() == {"role": "assistant", "content": "world", "reasoning_content": "hello"}
    here.talk.messages.append(said)
    here.reader = Script("and then?")
    here.run()
    assert "think" not in here.talk.tokenizer.decode(here.talk.kept.held)


def test_quotes_that_do_not_close_are_named(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    talk('"""one', "two")
    assert "does not end" in capsys.readouterr().err
