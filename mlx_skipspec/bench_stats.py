"""What a benchmark came to: statistics over prompts, and the speed-up the formula predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from mlx_skipspec.bench import Pair
from mlx_skipspec.blas import Blas
from mlx_skipspec.costs import Costs
from mlx_skipspec.stats import Stats

RESAMPLES, SEED, CONFIDENCE = 2000, 0, 0.95


Rates = Sequence[tuple[float, float]]  # tok/s of each prompt: plain, ours


def speedup(rates: Rates) -> float | None:
    """Ratio of means, as in Spec-Bench: mean tok/s ÷ mean plain tok/s."""
    return sum(ours for _, ours in rates) / sum(plain for plain, _ in rates) if rates else None


def speedup_median(rates: Rates) -> float | None:
    """Median over prompts of what each gained."""
    return median(ours / plain for plain, ours in rates) if rates else None


def interval(rates: Rates) -> list[float] | None:
    """95 % bootstrap interval of `speedup` over prompts: other prompts of this kind may give as little or as much."""
    if not rates:
        return None
    table = np.array(rates)
    drawn = np.random.default_rng(SEED).integers(len(table), size=(RESAMPLES, len(table)))
    plain, ours = table[drawn].sum(axis=1).T
    tail = (1 - CONFIDENCE) / 2
    return [float(value) for value in np.quantile(ours / plain, [tail, 1 - tail])]


def generation_rates(pairs: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    """Plain and our tok/s behind the first token, for each prompt the median over its repeats."""
    return _rates(pairs, "generation_tok_s")


def whole_rates(pairs: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    """The same with the prompt's pass included."""
    return _rates(pairs, "whole_tok_s")


def _rates(pairs: Sequence[Pair], of: str) -> dict[str, tuple[float, float]]:
    runs: dict[str, list[tuple[float, float]]] = {}
    for pair in pairs:
        plain, ours = getattr(pair.plain, of), getattr(pair.ours, of)
        if plain is not None and ours is not None:
            runs.setdefault(pair.id, []).append((plain, ours))
    return {name: (median(p for p, _ in of_one), median(o for _, o in of_one)) for name, of_one in runs.items()}


def predicted_speedup(pairs: Sequence[Pair], costs: Costs) -> float | None:
    """The speed-up that follows from what became of the drafts and what passes and draft steps cost on their own.

    A round with k drafted tokens takes v(k + 1) + k·d of its drafter, one that was dropped d more; a plain token v(1)
    (SCIENCE.md §1, summed over the rounds there were). The first token of each text comes with the prompt's pass, and
    is not counted.
    """
    rates = []
    for pair in pairs:
        context = pair.prompt_tokens + len(pair.ours.tokens) // 2
        rounds = Counter(pair.stats.rounds)
        rounds[None, 0, 0] -= 1
        seconds = sum(
            n * (costs.verify(drafted + 1, context) + (drafted * costs.draft(source, context) if source else 0.0))
            for (source, drafted, _), n in rounds.items()
        )
        seconds += sum(n * costs.draft(source, context) for source, n in pair.stats.dropped.items())
        if seconds > 0:
            rates.append((1 / costs.verify(1, context), (pair.stats.tokens - 1) / seconds))
    return speedup(rates)


def verify_curve(costs: Costs, widest: int, context: int) -> list[float]:
    """v: a pass over 1, 2, … `widest` rows ÷ one over one."""
    return [costs.verify(width, context) / costs.verify(1, context) for width in range(1, widest + 1)]


def draft_cost(costs: Costs, names: Sequence[str], context: int) -> dict[str, float]:
    """d of each drafter: a draft step ÷ a plain step."""
    return {name: costs.draft(name, context) / costs.verify(1, context) for name in names}


def as_json(
    pairs: Sequence[Pair],
    *,
    costs: Costs,
    drafters: Sequence[str],
    draft_tokens: int,
    blas: Blas,
    device: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """The object `bench --json` prints; its keys are a contract (tests/test_bench_stats.py)."""
    generation, whole = generation_rates(pairs), whole_rates(pairs)
    tasks = {pair.id: pair.task for pair in pairs}
    total, texts = Stats(), {pair.id: pair.identical for pair in reversed(pairs)}
    for pair in pairs:
        total.merge(pair.stats)
        texts[pair.id] &= pair.identical
    rates = list(generation.values())
    context = round(median(pair.prompt_tokens + len(pair.ours.tokens) // 2 for pair in pairs))
    worst = min(generation, key=lambda name: generation[name][1] / generation[name][0], default=None)
    return {
        "prompts": len(texts),
        "identical": sum(texts.values()),
        "speedup": speedup(rates),
        "speedup_median": speedup_median(rates),
        "interval": interval(rates),
        "by_task": {task: _of_task([p for p in pairs if p.task == task]) for task in sorted(set(tasks.values()))},
        "tokens_per_pass": total.tokens_per_pass,
        "acceptance_by_position": total.acceptance_by_position(),
        "by_source": total.by_source(),
        "verify_curve": verify_curve(costs, draft_tokens + 1, context),
        "draft_cost": draft_cost(costs, drafters, context),
        "predicted_speedup": predicted_speedup(pairs, costs),
        "worst_prompt": None
        if worst is None
        else {"id": worst, "task": tasks[worst], "speedup": generation[worst][1] / generation[worst][0]},
        "peak_memory_ratio": max(p.ours.peak_bytes / p.plain.peak_bytes for p in pairs),
        "blas": asdict(blas),
        "device": device,
        "with_prompt": {
            "speedup": speedup(list(whole.values())),
            "speedup_median": speedup_median(list(whole.values())),
            "interval": interval(list(whole.values())),
        },
        "prompt_seconds": {
            "mlx_lm": sum(pair.plain.prompt_seconds for pair in pairs),
            "ours": sum(pair.ours.prompt_seconds for pair in pairs),
        },
        "tok_s": {"mlx_lm": _mean(plain for plain, _ in rates), "ours": _mean(ours for _, ours in rates)},
        "context": context,
        "draft_tokens": draft_tokens,
        **more,
        "rows": [_row(pair) for pair in pairs],
    }


def _mean(values: Any) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _of_task(pairs: Sequence[Pair]) -> dict[str, Any]:
    rates, stats = list(generation_rates(pairs).values()), Stats()
    for pair in pairs:
        stats.merge(pair.stats)
    return {
        "prompts": len({pair.id for pair in pairs}),
        "speedup": speedup(rates),
        "speedup_median": speedup_median(rates),
        "tokens_per_pass": stats.tokens_per_pass,
    }


def _row(pair: Pair) -> dict[str, Any]:
    def run(run: Any) -> dict[str, Any]:
        return {"tokens": len(run.tokens)} | {k: v for k, v in asdict(run).items() if k != "tokens"}

    return {
        "id": pair.id,
        "task": pair.task,
        "prompt_tokens": pair.prompt_tokens,
        "identical": pair.identical,
        "speedup": speedup(list(generation_rates([pair]).values())),
        "mlx_lm": run(pair.plain),
        "ours": run(pair.ours) | {"passes": pair.stats.passes},
    }
