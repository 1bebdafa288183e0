"""What is typed, and what is shown: colours, thoughts, several lines."""

from __future__ import annotations

import click
import pytest
from chatting import Script

from mlx_skipspec import terminal
from mlx_skipspec.cli import note, say
from mlx_skipspec.terminal import Screen, read_question

THOUGHTS = [("<think>", None), ("hm", None), ("</think>", "lookup"), ("\n\nyes", "skip"), (" no", None)]


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("colours", [False, True])
def test_thoughts_are_dim_or_hidden_and_drafts_have_colours(
    hide: bool, colours: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(terminal, "colours_wanted", lambda: colours)
    monkeypatch.setattr(terminal, "say", lambda text, nl=True: said.append(text))
    screen = Screen(show_drafts=True, hide_thoughts=hide)
    for text, source in THOUGHTS:
        screen.piece(text, "think" in text or text == "hm", source)
    shown = "".join(said)
    assert click.unstyle(shown) == ("yes no" if hide else "<think>hm</think>\n\nyes no")
    assert capsys.readouterr().err == ("thinking …\n" if hide else "")
    assert ("\x1b" in shown) is colours
    if colours:
        assert click.style("yes" if hide else "\n\nyes", fg=screen.colour("skip")) in shown
        assert shown.endswith(" no")
        assert hide or click.style("hm", dim=True) in shown
        assert len({screen.colour(source) for source in ("skip", "lookup", "other")}) == 3


def test_a_colour_is_explained_when_it_has_come_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "colours_wanted", lambda: True)
    screen = Screen(show_drafts=True)
    said = []
    for sources in ([None], ["lookup", None, "lookup"], ["lookup"], ["skip"]):
        for source in sources:
            screen.piece("x", False, source)
        screen.legend()
        said.append(capsys.readouterr().err)
    assert [line.removesuffix("; the others are the model's own.\n") for line in said] == [
        "",
        "Tokens guessed by lookup",
        "",
        "Tokens guessed by lookup, skip",
    ]


@pytest.mark.parametrize(
    ("lines", "question"),
    [
        (["one"], "one"),
        (['"""one', "two", 'three"""', "four"], "one\ntwo\nthree"),
        (['"""one"""'], "one"),
        (['"""', "one", "", "two", '"""  '], "one\n\ntwo"),
        ([], None),
    ],
)
def test_several_lines_between_quotes_are_one_question(lines: list[str], question: str | None) -> None:
    assert read_question(Script(*lines)) == question


@pytest.mark.parametrize(
    ("environment", "colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_no_color_is_respected(environment: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert terminal.colours_wanted() is colours


@pytest.mark.parametrize("both_on_a_terminal", [True, False])
def test_a_note_is_a_line_of_its_own_on_a_terminal(
    both_on_a_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: both_on_a_terminal, raising=False)
    for text in ("the ans", ""):
        say(text, nl=False)
    note("pace")
    note("again")
    say("wer\n", nl=False)
    note("end")
    captured = capsys.readouterr()
    assert captured.out == "the answer\n"
    assert captured.err == "\n" * both_on_a_terminal + "pace\nagain\nend\n"
