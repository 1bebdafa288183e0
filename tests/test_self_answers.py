"""A model's answers on disk: a second run goes on where a kill left the first, and nobody else's file is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mlx_skipspec.convert import self_answers as answering  # noqa: E402
from mlx_skipspec.convert.self_answers import self_answers  # noqa: E402
from mlx_skipspec.convert.world import World  # noqa: E402
from mlx_skipspec.errors import SkipSpecError  # noqa: E402

PROMPTS = ("one", "two", "three", "four")
LINES = [json.dumps({"prompt": prompt, "answer": "yes"}).encode() + b"\n" for prompt in PROMPTS]


class Letters:
    """As much of a tokenizer as is needed."""

    chat_template = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@pytest.fixture
def answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets a model that says yes answer the prompts into a file."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    monkeypatch.setattr(answering, "_generate", lambda _model, _tokenizer, prompts, *_: ["yes"] * len(prompts))

    def into(out: Path) -> list[bytes]:
        self_answers(None, Letters(), prompts, out, World(0, 1, torch.device("cpu")))
        return sorted(out.read_bytes().splitlines(keepends=True))

    return into


@pytest.mark.parametrize("cut", [1, 5, 20, len(LINES[1]) - 2, len(LINES[1]) - 1])
@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.0"])
def test_a_line_cut_short_anywhere_is_answered_again(tmp_path: Path, answered: Any, cut: int, name: str) -> None:
    (tmp_path / name).write_bytes(LINES[0] + LINES[1][:cut])
    assert answered(tmp_path / "answers.jsonl") == sorted(LINES)


def test_answers_written_by_hand_may_lack_the_last_line_break(tmp_path: Path, answered: Any) -> None:
    (tmp_path / "answers.jsonl").write_bytes(b'{"answer": "no", "prompt": "two"}')
    found = answered(tmp_path / "answers.jsonl")
    assert found == sorted([b'{"answer": "no", "prompt": "two"}\n', LINES[0], *LINES[2:]])


@pytest.mark.parametrize("body", [b"notes of mine", b'{"vocab_size": 3}', b"[1, 2]", LINES[0] + b"more notes"])
def test_a_file_that_holds_something_else_is_refused_and_stays_as_it_is(
    tmp_path: Path, answered: Any, body: bytes
) -> None:
    (tmp_path / "notes.txt").write_bytes(body)
    with pytest.raises(SkipSpecError, match=r"notes.txt is no file of answers; need a new name"):
        answered(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_bytes() == body


def test_a_folder_is_no_file_of_answers(tmp_path: Path, answered: Any) -> None:
    with pytest.raises(SkipSpecError, match=r"cannot be read \(Is a directory\)"):
        answered(tmp_path)


def test_prompts_too_long_to_answer_are_counted_aloud(
    tmp_path: Path, answered: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answering, "LONGEST_PROMPT", 4)
    assert len(answered(tmp_path / "answers.jsonl")) == 3
    assert "1 of 4 prompts are longer than 4 tokens" in capsys.readouterr().err
