"""What a conversation or a prompt cache cannot begin with is refused before the weights are read."""

from __future__ import annotations

from pathlib import Path

import checkpoint
import pytest
from spoil import SIZES, Refuse


@pytest.mark.usefixtures("no_model")
def test_flags_that_cannot_be_are_refused_before_a_model_is_opened(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").write_text("")
    (tmp_path / "bad.jsonl").write_text("{")
    assert "cannot be read" in refuse("chat", "--resume", tmp_path / "missing.jsonl")
    assert "line 1: need an object" in refuse("chat", "--resume", tmp_path / "bad.jsonl")
    assert "exists; need a new name" in refuse("chat", "--save", tmp_path / "there.jsonl")
    assert "There is no folder" in refuse("chat", "--save", tmp_path / "no" / "talk.jsonl")
    assert "drop --save" in refuse("chat", "--resume", tmp_path / "there.jsonl", "--save", tmp_path / "new.jsonl")
    (tmp_path / "system.jsonl").write_text('{"role": "system", "content": "be kind"}')
    assert "message of its own" in refuse("chat", "--resume", tmp_path / "system.jsonl", "--system-prompt", "be rude")
    assert "max_tokens=0" in refuse("chat", "-m", 0)
    file = tmp_path / "c.safetensors"
    assert "nothing to prefill" in refuse("cache-prompt", "--prompt-cache-file", file)
    assert "ends in .safetensors" in refuse("cache-prompt", "-p", "x", "--prompt-cache-file", tmp_path / "c")
    assert "kv_bits=5" in refuse("cache-prompt", "-p", "x", "--prompt-cache-file", file, "--kv-bits", 5)


@pytest.mark.usefixtures("no_weights")
def test_what_the_model_cannot_do_is_refused_before_its_weights_are_read(
    refuse: Refuse, model: Path, tmp_path: Path
) -> None:
    for asking in (("chat",), ("generate", "-p", "hi")):
        assert "can't turn thinking on or off" in refuse(*asking, "--model", model, "--no-think")
    bare = tmp_path / "bare"
    tokenizer = checkpoint.byte_level()
    tokenizer.chat_template = None
    checkpoint.write(bare, tokenizer=tokenizer, **SIZES)
    assert "no chat template" in refuse("chat", "--model", bare)
    assert "no place for --system-prompt, --think" in refuse("generate", "-p", "hi", "--model", bare, "--think")
