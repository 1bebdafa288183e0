"""A tokenizer that is missing, damaged or not the model's, and its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from spoil import HIDDEN, Refuse, change, rewrite


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("tokenizer.json", text) for text in (None, b"", b"{", b"{}", b"[]", b"3", b"\xff\xfe")),
        *(("tokenizer_config.json", text) for text in (b"", b"{", b"[]", b"3", b"\xff\xfe")),
    ],
)
def test_a_tokenizer_missing_or_damaged(
    refuse: Refuse, no_weights: None, copy: Path, name: str, text: bytes | None
) -> None:
    (copy / name).unlink()
    if text is not None:
        (copy / name).write_bytes(text)
    assert "tokenizer in" in refuse("generate", "-p", "hi", "--model", copy)


@pytest.mark.parametrize("part", [{"model": {"type": "BPE"}}, {"decoder": {"type": "nothing"}}, {"added_tokens": 3}])
def test_a_tokenizer_whose_parts_are_none(refuse: Refuse, copy: Path, part: dict[str, Any]) -> None:
    change(copy / "tokenizer.json", **part)
    assert "tokenizer in" in refuse("generate", "-p", "hi", "--model", copy)


def test_a_tokenizer_with_more_tokens_than_the_model(refuse: Refuse, no_weights: None, copy: Path) -> None:
    rewrite(copy, **{"model.embed_tokens.weight": mx.zeros((50, HIDDEN))})
    change(copy / "config.json", vocab_size=50)
    assert "knows 0 to 49" in refuse("generate", "-p", "zzz", "--model", copy)


TEMPLATES = ["{% for", "{{ nothing() }}", "{{ raise_exception('no system!') }}", "{{ 1 / 0 }}"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_that_cannot_be_rendered(refuse: Refuse, no_weights: None, copy: Path, template: str) -> None:
    (copy / "chat_template.jinja").write_text(template)
    said = refuse("generate", "-p", "hi", "--system-prompt", "be brief", "--model", copy)
    assert "--ignore-chat-template" in said
    assert "raise_exception" not in template or "no system!" in said


def test_a_system_prompt_where_there_is_no_template(refuse: Refuse, no_weights: None, model: Path) -> None:
    ignoring = ("generate", "-p", "hi", "--model", model, "--ignore-chat-template")
    assert "no place for --system-prompt" in refuse(*ignoring, "--system-prompt", "x")
    assert "no place for --system-prompt" in refuse(*ignoring, "--chat-template-config", '{"a": 1}')
