"""The demo model: right answers, ours plain and drafting and mlx-lm's. Fetches 93 MB once; run with -m real."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_skipspec.api import stream_generate
from mlx_skipspec.check import Checker
from mlx_skipspec.convert.demo import demo_model
from mlx_skipspec.drafting import choose_drafter
from mlx_skipspec.loading import load
from mlx_skipspec.prompts import chat_ids
from mlx_skipspec.sampling import Sampler
from mlx_skipspec.target import Target

pytestmark = pytest.mark.real
CAPITAL, SKY = "What is the capital of France?", "Explain in two sentences why the sky is blue."


@pytest.fixture(scope="module")
def demo() -> tuple[Target, Any]:
    return load(demo_model())


def answer(demo: tuple[Target, Any], prompt: str, max_tokens: int, **options: Any) -> tuple[list[int], str, str]:
    target, tokenizer = demo
    responses = list(stream_generate(target, tokenizer, chat_ids(tokenizer, prompt), max_tokens, **options))
    return [r.token for r in responses], "".join(r.text for r in responses), responses[-1].mode


def test_it_knows_the_capital_of_france_in_a_speculative_mode(demo: tuple[Target, Any]) -> None:
    _, text, mode = answer(demo, CAPITAL, 20)
    assert (text, mode) == ("The capital of France is Paris.", "lookup+skip(2,2)+hvc+clusters")


def test_it_says_why_the_sky_is_blue(demo: tuple[Target, Any]) -> None:
    _, text, _ = answer(demo, SKY, 24)
    assert text.startswith(
        "The sky is blue because of a process called Rayleigh scattering, where light encounters tiny"
    )


def test_drafting_changes_no_token_at_any_temperature(demo: tuple[Target, Any]) -> None:
    for sampler in (Sampler(), Sampler(temperature=0.8, top_p=0.95, seed=7)):
        drafts = [choose_drafter(demo[0], choice, sampler=sampler) for choice in ("none", "skip", "lookup")]
        plain, *others = [answer(demo, SKY, 16, drafting=draft, sampler=sampler)[0] for draft in drafts]
        assert others == [plain, plain]


def test_greedy_text_is_mlx_lms(demo: tuple[Target, Any]) -> None:
    target, tokenizer = demo
    drafting = choose_drafter(target)
    checker = Checker(target, drafting.drafter, eos=tokenizer.eos_token_ids, max_tokens=16)
    assert checker.compare("sky", chat_ids(tokenizer, SKY)) == []
