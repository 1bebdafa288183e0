"""A file of prompts is read as its writer meant it."""

from __future__ import annotations

import json
from pathlib import Path

from mlx_skipspec.prompts import Prompt, read_prompts


def test_a_mark_in_front_and_breaks_inside_a_prompt_are_no_trouble(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    first = json.dumps({"prompt": "one\u2028two\x85"}, ensure_ascii=False)
    file.write_text(f'{first}\r\n\r\n{{"prompt": "three", "category": "qa"}}', encoding="utf-8-sig", newline="")
    assert list(read_prompts(file)) == [Prompt("1", "one\u2028two\x85", "none"), Prompt("3", "three", "qa")]
