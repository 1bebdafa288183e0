"""What machines read: these keys, with these meanings, and plain JSON."""

from __future__ import annotations

import json
from typing import Any

import mlx.core as mx
import pytest

from mlx_skipspec.api import Response
from mlx_skipspec.check import Difference
from mlx_skipspec.check import as_json as check_json
from mlx_skipspec.report import as_json, summary
from mlx_skipspec.stats import Stats
from mlx_skipspec.step import Step

KEYS = [
    "text",
    "tokens",
    "finish_reason",
    "mode",
    "prompt_tokens",
    "generation_tokens",
    "prompt_seconds",
    "generation_seconds",
    "generation_tok_s",
    "peak_memory_bytes",
    "passes",
    "drafted",
    "accepted",
    "tokens_per_pass",
    "acceptance_by_position",
    "by_source",
    "decisions",
]
STEPS = [
    Step((1,)),
    Step((2, 3), drafted=2, accepted=1, source="skip"),
    Step((4, 5, 6), drafted=2, accepted=2, source="skip"),
    Step((7,), drafted=3, accepted=0, source="lookup"),
    Step((8, 9), drafted=1, accepted=1, source="lookup", finish_reason="stop"),
]


def last(steps: list[Step], **changes: Any) -> Response:
    given = {
        "text": "!",
        "token": 9,
        "logprobs": mx.zeros(3),
        "from_draft": False,
        "prompt_tokens": 12,
        "prompt_tps": 24.0,
        "generation_tokens": 9,
        "generation_tps": 4.5,
        "peak_memory": 1.25,
        "finish_reason": "stop",
        "mode": "lookup+skip(2,2)+hvc",
        "prompt_seconds": 0.5,
        "generation_seconds": 2.0,
        "stats": Stats.of(steps),
    }
    return Response(**(given | changes))


def test_generates_json_has_these_keys_in_this_order() -> None:
    assert list(as_json("hi!", [1, 2], last(STEPS))) == KEYS


def test_generates_json_survives_json() -> None:
    made = as_json("hé!", list(range(1, 10)), last(STEPS))
    assert json.loads(json.dumps(made)) == made


def test_every_value_is_the_one_its_key_names() -> None:
    made = as_json("hi!", list(range(1, 10)), last(STEPS))
    assert made["acceptance_by_position"] == [3 / 4, 1 / 2, None]
    assert made["by_source"] == {
        "lookup": {
            "rounds": 2,
            "drafted": 4,
            "accepted": 1,
            "dropped": 0,
            "acceptance_by_position": [1 / 2, None, None],
        },
        "skip": {"rounds": 2, "drafted": 4, "accepted": 3, "dropped": 0, "acceptance_by_position": [1.0, 1 / 2]},
    }
    assert made["decisions"] == {"lookup": {"1": 1, "3": 1}, "plain": {"0": 1}, "skip": {"2": 2}}
    del made["decisions"], made["by_source"], made["acceptance_by_position"]
    assert made == {
        "text": "hi!",
        "tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9],
        "finish_reason": "stop",
        "mode": "lookup+skip(2,2)+hvc",
        "prompt_tokens": 12,
        "generation_tokens": 9,
        "prompt_seconds": 0.5,
        "generation_seconds": 2.0,
        "generation_tok_s": 4.5,
        "peak_memory_bytes": 1_250_000_000,
        "passes": 5,
        "drafted": 8,
        "accepted": 4,
        "tokens_per_pass": 9 / 5,
    }


def test_a_position_no_round_got_to_is_null() -> None:
    made = as_json("", [1], last([Step((1,), drafted=2, accepted=0, source="skip")]))
    assert '"acceptance_by_position": [0.0, null]' in json.dumps(made)


def test_plain_decoding_has_no_positions_and_no_sources() -> None:
    made = as_json("", [1], last([Step((1,)), Step((2,))], mode="none"))
    assert (made["passes"], made["drafted"], made["accepted"]) == (2, 0, 0)
    assert (made["acceptance_by_position"], made["by_source"]) == ([], {})


def test_the_summary_gives_both_acceptances_by_name() -> None:
    lines = summary(last(STEPS), "float32").splitlines()
    assert "drafts      accepted/drafted 4/8 = 0.50, accepted/emitted 4/9 = 0.44" in lines
    assert "            accepted at draft position 1, 2, … given all before: 0.75 0.50 -" in lines
    assert "mode        lookup+skip(2,2)+hvc (float32)" in lines


def test_the_summary_warns_of_a_drafter_that_is_never_right() -> None:
    assert "no guess was accepted" in summary(last([Step((1,), drafted=2, accepted=0, source="skip")]), "float32")
    assert "no guess was accepted" not in summary(last(STEPS), "float32")
    assert "drafts" not in summary(last([Step((1,))]), "float32")


def test_a_drafter_that_had_a_fair_chance_and_was_never_right_is_named() -> None:
    steps = [*STEPS, *[Step((1,), drafted=5, accepted=0, source="copy")] * 4]
    assert "            copy: none of 20 guessed tokens was accepted" in summary(last(steps), "float32").splitlines()
    assert "copy:" not in summary(last(steps[:-1]), "float32")
    assert "lookup:" not in summary(last(steps), "float32")


NEAR, FAR = (0.1, 0.2), (0.3, 0.2)  # gap and bound


def different(prompt: str, run: str, closeness: tuple[float, float]) -> Difference:
    return Difference(prompt, run, 7, 1, 2, *closeness)


def test_checks_json_has_these_keys() -> None:
    made = check_json(4, [different("a", "plain", NEAR), different("b", "drafting", FAR)])
    differences = made.pop("differences")
    assert made == {"prompts": 4, "identical": 2, "near_ties": 1, "diverged": 1}
    assert differences[1] == {
        "prompt": "b",
        "run": "drafting",
        "position": 7,
        "ours": 1,
        "theirs": 2,
        "gap": 0.3,
        "bound": 0.2,
        "verdict": "diverged",
    }
    assert json.loads(json.dumps(differences)) == differences


@pytest.mark.parametrize("runs", [(NEAR, FAR), (FAR, NEAR), (FAR, FAR)])
def test_a_prompt_counts_by_the_worst_of_its_runs(runs: tuple[tuple[float, float], ...]) -> None:
    made = check_json(
        1, [different("a", run, closeness) for run, closeness in zip(("plain", "drafting"), runs, strict=True)]
    )
    assert (made["identical"], made["near_ties"], made["diverged"]) == (0, 0, 1)


def test_no_difference_is_all_identical() -> None:
    assert check_json(3, []) == {"prompts": 3, "identical": 3, "near_ties": 0, "diverged": 0, "differences": []}
