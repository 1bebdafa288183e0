"""The file of a conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlx_skipspec import SkipSpecError
from mlx_skipspec.messages import Message, read_messages, write_messages

TALK = [
    Message("system", "be kind"),
    Message("user", "grün\u2028?\n"),
    Message("assistant", "yes", "hm", (1, 2), "x"),
    Message("user", "and?"),
]


def test_it_has_a_message_of_openais_shape_a_line_and_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    write_messages(file, TALK)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    assert lines[:3] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "grün\u2028?\n"},
        {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
    ]
    assert [m.as_json() for m in read_messages(file)] == lines
    assert [path.name for path in tmp_path.iterdir()] == ["talk.jsonl"]
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # as some editors put in front
    assert [m.as_json() for m in read_messages(file)] == lines


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "talk.jsonl"
    write_messages(file, TALK[:2])

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SkipSpecError, match="No space left"):
        write_messages(file, TALK)
    assert [m.content for m in read_messages(file)] == ["be kind", "grün\u2028?\n"]
    assert [path.name for path in tmp_path.iterdir()] == ["talk.jsonl"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SkipSpecError, match="can be written"):
        write_messages(tmp_path / "no" / "talk.jsonl", TALK)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", 1),
        ("[]", 1),
        ('{"role": "user"}', 1),
        ('{"role": "user", "content": 5}', 1),
        ('{"role": "user", "content": null}', 1),
        ('{"role": "tool", "content": "x"}', 1),
        ('{"role": "assistant", "content": "x"}', 1),
        ('{"role": "user", "content": "\\ud800"}', 1),
        ('{"role": "user", "content": "x"}\n\n{"role": "user", "content": "x"}', 3),
        ('{"role": "user", "content": "x"}\n{"role": "system", "content": "x"}', 2),
    ],
)
def test_anything_else_is_refused_by_its_line(text: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SkipSpecError, match=f"line {line}: need an object"):
        read_messages(file)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["missing", "not UTF-8"])
def test_a_file_that_cannot_be_read_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    if content:
        file.write_bytes(content)
    with pytest.raises(SkipSpecError, match="cannot be read"):
        read_messages(file)
