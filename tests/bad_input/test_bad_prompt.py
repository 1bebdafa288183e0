"""A prompt that is no text or too long, on the command line, on standard input and in a file for check."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from spoil import Refuse

from mlx_skipspec.prompts import read_prompts


@pytest.mark.parametrize("prompt", ["", " ", "\n\t", "\udcff", "a\ud800b"], ids=repr)
def test_a_prompt_that_is_no_text(refuse: Refuse, no_model: None, model: Path, prompt: str) -> None:
    assert "The prompt is" in refuse("generate", "--model", model, "-p", prompt)


def test_a_prompt_longer_than_the_context(refuse: Refuse, no_weights: None, model: Path, tmp_path: Path) -> None:
    said = refuse("generate", "--model", model, "-p", "z" * 1024)
    assert "the model's context 1024" in said
    assert "--max-kv-size" in said
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "short"}\n' + json.dumps({"prompt": "z" * 1024}))
    assert "context 1024" in refuse("check", "--model", model, "--prompts", tmp_path / "prompts.jsonl")


@pytest.mark.parametrize("piped", [b"", b" \n", b"\xff\xfe\x00", b"ok then \xff"])
def test_a_standard_input_that_is_no_text(
    refuse: Refuse, no_model: None, model: Path, piped: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
    refuse("generate", "--model", model, "-p", "-")


PROMPTS = [
    None, b"", b" \n\n", b"\xff\xfe", b"hello", b"[]", b"null", b"{}", b'{"prompt": 3}', b'{"prompt": " "}',
    b'{"prompt": "\\ud800"}', b"[" * 100_000, b'{"prompt": "good"}\n{"prompt": ',
]  # fmt: skip


@pytest.mark.parametrize("text", PROMPTS, ids=lambda text: repr(text)[:30])
def test_a_file_of_prompts_that_is_none(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, text: bytes | None
) -> None:
    if text is not None:
        (tmp_path / "prompts.jsonl").write_bytes(text)
    assert "prompts.jsonl" in refuse("check", "--model", model, "--prompts", tmp_path / "prompts.jsonl")


@pytest.mark.parametrize(
    "options", [("--max-tokens", "0"), ("--limit", "0"), ("--plan", "x"), ("--plan", "0,0")], ids=str
)
def test_options_of_check_are_checked_before_a_model_is_opened(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, options: tuple[str, str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hi"}')
    refuse("check", "--model", model, "--prompts", tmp_path / "prompts.jsonl", *options)
    assert "a directory" in refuse("check", "--model", model, "--prompts", tmp_path)


def test_a_prompt_with_unicodes_other_line_breaks_is_one_prompt(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"id": 1, "prompt": "a\u2028b\x85c"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert list(read_prompts(file)) == [("1", "a\u2028b\x85c", "none")]
