"""What bench and doctor refuse, before a model is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from spoil import Refuse

from mlx_skipspec import bench_report


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}')
    return tmp_path / "prompts.jsonl"


@pytest.mark.parametrize(
    "options",
    [
        *(("--max-tokens", value) for value in ("0", "-1", "x")),
        *(("--repeat", value) for value in ("0", "x")),
        ("--limit", "0"),
        ("--draft-tokens", "0"),
        ("--drafter", "oracle"),
        ("--drafter", "none", "--plan", "1,1"),
        ("--plan", "x"),
        ("--sidecar", "/nowhere"),
        ("--plot", "out.jpeg2"),
        ("--plot", "/nowhere/out.png"),
    ],
    ids=" ".join,
)
def test_an_option_no_model_could_follow(
    refuse: Refuse, no_model: None, model: Path, prompts: Path, options: tuple[str, ...]
) -> None:
    refuse("bench", "--model", model, "--prompts", prompts, *options)


def test_a_picture_without_matplotlib(
    refuse: Refuse, no_model: None, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "find_spec", lambda name: None)
    said = refuse("bench", "--model", model, "--prompts", prompts, "--plot", "out.png")
    assert "pip install 'mlx-skipspec[plot]'" in said


def test_two_prompts_of_one_name(refuse: Refuse, no_model: None, model: Path, prompts: Path) -> None:
    prompts.write_text('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}')
    assert "\"id\" 'a' more than once" in refuse("bench", "--model", model, "--prompts", prompts)


def test_a_prompt_longer_than_the_context(refuse: Refuse, no_weights: None, model: Path, prompts: Path) -> None:
    prompts.write_text('{"prompt": "' + "z" * 1024 + '"}')
    assert "context 1024" in refuse("bench", "--model", model, "--prompts", prompts)


def test_a_file_without_prompts(refuse: Refuse, no_model: None, model: Path, tmp_path: Path) -> None:
    assert "cannot be read" in refuse("bench", "--model", model, "--prompts", tmp_path / "none.jsonl")


def test_a_doctor_for_a_model_that_is_not_there(refuse: Refuse) -> None:
    refuse("doctor", "--model", "/nowhere")
