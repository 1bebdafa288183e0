"""Options that fit cannot follow, and texts it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest
from spoil import DEPTH, Refuse

TEXTS: dict[str, bytes | None] = {
    "missing.txt": None,
    "empty.txt": b"",
    "short.txt": b"hello",
    "too-few-windows.txt": b"z" * 256 * 8,
    "binary.txt": b"\xff\xfe" * 1000,
    "binary-in-the-end.txt": b"z" * 300 + b"\xff",
    "empty.jsonl": b"",
    "short.jsonl": b'{"text": "hello"}',
    "no-json.jsonl": b"hello",
    "no-object.jsonl": b"[]",
    "no-key.jsonl": b'{"body": "hello"}',
    "number.jsonl": b'{"text": 3}',
    "half-a-pair.jsonl": b'{"text": "\\ud800"}',
    "answer.jsonl": b'{"prompt": "hello", "answer": 3}',
    "deep.jsonl": b"[" * 100_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_nothing_can_be_fitted_on(refuse: Refuse, model: Path, tmp_path: Path, name: str) -> None:
    if (body := TEXTS[name]) is not None:
        (tmp_path / name).write_bytes(body)
    out = tmp_path / "new" / "out"
    assert "need" in refuse("fit", "--model", model, "--plan", "1,1", "--text", tmp_path / name, "--out", out)


@pytest.mark.parametrize(
    "options",
    [
        *(("--tokens", value) for value in ("0", "-1", "255", "x")),
        *(("--plan", value) for value in ("x", "", "0,0", "-1,2")),
        ("--text", "nowhere.txt"),
        ("--text", "/"),
    ],
    ids=" ".join,
)
def test_an_option_of_fit_no_model_could_follow_is_refused_before_one_is_opened(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, options: tuple[str, str]
) -> None:
    refuse("fit", "--model", model, "--out", tmp_path / "new" / "out", *options)


def test_a_plan_this_model_is_too_shallow_for_is_refused_before_its_weights_are_read(
    refuse: Refuse, no_weights: None, model: Path, tmp_path: Path
) -> None:
    said = refuse("fit", "--model", model, "--plan", "2,20", "--out", tmp_path / "out")
    assert f"need head + tail <= {DEPTH - 1}" in said
