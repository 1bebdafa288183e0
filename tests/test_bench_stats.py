"""A benchmark's figures, on answers and costs made up so that each is known beforehand."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from mlx_skipspec.bench import Pair, Run
from mlx_skipspec.bench_report import table
from mlx_skipspec.bench_stats import as_json, interval, predicted_speedup, speedup, speedup_median
from mlx_skipspec.blas import NO_SPEED_UP, Blas
from mlx_skipspec.costs import Costs
from mlx_skipspec.stats import Stats

KEYS = [
    "prompts",
    "identical",
    "speedup",
    "speedup_median",
    "interval",
    "by_task",
    "tokens_per_pass",
    "acceptance_by_position",
    "by_source",
    "verify_curve",
    "draft_cost",
    "predicted_speedup",
    "worst_prompt",
    "peak_memory_ratio",
    "blas",
    "device",
]
COSTS = Costs((64, 1024), ((0.1, 0.11, 0.12), (0.1, 0.11, 0.12)), {"skip": (0.02, 0.02), "lookup": (0.0, 0.0)})
OPENBLAS = Blas("libopenblas.so.0", 1)
DEVICE = {"cpu": "abacus", "device": "Device(cpu, 0)"}
ROUNDS = Counter({(None, 0, 0): 3, ("skip", 2, 2): 2, ("skip", 2, 0): 1, ("lookup", 1, 1): 1})
TOKENS = 3 + 2 * 3 + 1 + 2


def pair(name: str, task: str, plain_tok_s: float, ours_tok_s: float, **changes: Any) -> Pair:
    """Twelve tokens, the prompt's pass one second either way."""
    tokens = tuple(range(TOKENS))
    plain = Run(tokens, 1.0, (TOKENS - 1) / plain_tok_s, changes.get("plain_peak", 1000))
    ours = Run(changes.get("tokens", tokens), 1.0, (TOKENS - 1) / ours_tok_s, 1100)
    stats = Stats(rounds=Counter(changes.get("rounds", ROUNDS)), tokens=TOKENS, from_draft=5)
    return Pair(name, task, 40, plain, ours, stats)


PAIRS = [pair("a", "qa", 10, 20), pair("b", "qa", 40, 40), pair("c", "code", 10, 30)]


def result(pairs: list[Pair], blas: Blas = OPENBLAS, **more: Any) -> dict[str, Any]:
    about = {"mode": "skip", "dtype": "float32"} | more
    return as_json(pairs, costs=COSTS, drafters=["skip", "lookup"], draft_tokens=2, blas=blas, device=DEVICE, **about)


def test_the_json_has_these_keys_first_and_survives_json() -> None:
    made = result(PAIRS)
    assert list(made)[: len(KEYS)] == KEYS
    assert json.loads(json.dumps(made)) == made


def test_the_speed_up_is_the_ratio_of_means_and_the_median_is_of_ratios() -> None:
    made = result(PAIRS)
    assert made["speedup"] == pytest.approx((20 + 40 + 30) / (10 + 40 + 10))
    assert made["speedup_median"] == pytest.approx(2.0)
    assert made["tok_s"] == pytest.approx({"mlx_lm": 20.0, "ours": 30.0})


def test_with_the_prompts_pass_a_speed_up_is_smaller() -> None:
    made = result([pair("a", "qa", 11, 22)])
    assert made["with_prompt"]["speedup"] == pytest.approx((1.0 + 1.0) / (1.0 + 0.5))
    assert made["prompt_seconds"] == {"mlx_lm": 1.0, "ours": 1.0}


def test_each_task_has_its_own() -> None:
    tasks = result(PAIRS)["by_task"]
    assert list(tasks) == ["code", "qa"]
    assert [tasks[name]["prompts"] for name in tasks] == [1, 2]
    assert tasks["qa"]["speedup"] == pytest.approx(60 / 50)
    assert tasks["qa"]["speedup_median"] == pytest.approx(1.5)
    assert tasks["code"]["tokens_per_pass"] == pytest.approx(TOKENS / 7)


def test_the_worst_prompt_gained_least() -> None:
    assert result(PAIRS)["worst_prompt"] == {"id": "b", "task": "qa", "speedup": pytest.approx(1.0)}


def test_a_prompts_repeats_count_once_by_their_median() -> None:
    repeated = [pair("a", "qa", 10, ours) for ours in (20, 1, 21)]
    made = result(repeated)
    assert made["prompts"] == made["identical"] == 1
    assert made["speedup"] == pytest.approx(2.0)
    assert len(made["rows"]) == 3


def test_a_text_that_differed_once_is_not_identical() -> None:
    made = result([*PAIRS, pair("a", "qa", 10, 20, tokens=(1, 2))])
    assert (made["prompts"], made["identical"]) == (3, 2)


def test_the_interval_holds_the_ratio_and_is_the_same_every_time() -> None:
    rates = [(10.0, 10.0 + i % 10) for i in range(50)]
    low, high = interval(rates) or (0, 0)
    assert 1.3 < low < speedup(rates) < high < 1.6
    assert [low, high] == interval(rates)
    wide = interval(rates[:5]) or [0, 0]
    assert wide[1] - wide[0] < 10 * (high - low)
    assert interval([(10.0, 12.0)] * 4) == pytest.approx([1.2, 1.2])


def test_nothing_measured_is_none_and_not_a_number() -> None:
    assert (speedup([]), speedup_median([]), interval([])) == (None, None, None)


def test_the_formula_sums_every_kind_of_round() -> None:
    # Two plain rounds behind the first token, three that draft two with the layers, one that copies one.
    seconds = 2 * 0.1 + 3 * (0.12 + 2 * 0.02) + 0.11
    expected = (TOKENS - 1) * 0.1 / seconds
    assert predicted_speedup([pair("a", "qa", 1, 1)], COSTS) == pytest.approx(expected)


def test_the_formula_gives_plain_decoding_no_speed_up() -> None:
    plain = pair("a", "qa", 1, 1, rounds={(None, 0, 0): TOKENS})
    assert predicted_speedup([plain], COSTS) == pytest.approx(1.0)
    assert predicted_speedup([], COSTS) is None


def test_v_and_d_are_relative_to_a_plain_step() -> None:
    made = result(PAIRS)
    assert made["verify_curve"] == pytest.approx([1.0, 1.1, 1.2])
    assert made["draft_cost"] == pytest.approx({"skip": 0.2, "lookup": 0.0})


def test_memory_is_compared_at_the_peaks_of_the_prompt_that_takes_most() -> None:
    assert result([*PAIRS, pair("large", "rag", 10, 10, plain_peak=9000)])["peak_memory_ratio"] == pytest.approx(1.1)


def test_answers_of_one_token_leave_no_speed_up_to_speak_of() -> None:
    run = Run((1,), 1.0, 0.0, 1000)
    made = result([Pair("a", "qa", 40, run, run, Stats(Counter({(None, 0, 0): 1}), 1, 0))])
    assert [made[key] for key in ("speedup", "interval", "predicted_speedup", "worst_prompt")] == [None] * 4
    assert made["with_prompt"]["speedup"] == 1.0
    assert "speed-up    -" in table(made)


def test_the_table_says_what_ran_on_what() -> None:
    said = table(result(PAIRS))
    assert "3/3 texts" in said
    assert "speed-up    1.50" in said
    assert "libopenblas.so.0, 1 thread" in said
    assert "worst       1.00, b (qa)" in said
    assert "  skip      12/18 in 9 rounds: 0.67 1.00" in said
    assert NO_SPEED_UP not in said


def test_with_reference_blas_the_table_says_why_there_is_no_speed_up() -> None:
    assert NO_SPEED_UP in table(result(PAIRS, Blas("reference", 1)))
