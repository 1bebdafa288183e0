"""Sampling: mlx-lm's filters, keyed draws, honest arguments."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.sampling import GREEDY, Sampler, normalised

LOGITS = mx.random.normal((4, 50), key=mx.random.key(1)) * 3


def test_greedy_is_mlx_lms_greedy() -> None:
    assert GREEDY.choose(LOGITS, 0).tolist() == make_sampler(0.0)(normalised(LOGITS)).tolist()


def test_a_draw_depends_on_seed_and_position_only() -> None:
    sampler = Sampler(temperature=1.0, seed=5)
    together = sampler.choose(LOGITS, 10).tolist()
    alone = [sampler.choose(LOGITS[i : i + 1], 10 + i).item() for i in range(4)]
    assert together == alone


def test_seeds_and_positions_draw_differently() -> None:
    flat = mx.zeros((1, 1000))
    draws = [
        Sampler(temperature=1.0, seed=seed).choose(flat, p).item()
        for seed in (0, 1, 2**32, 2**40 + 1)
        for p in range(8)
    ]
    assert len(set(draws)) > 28


@pytest.mark.parametrize(
    "filters", [{}, {"top_p": 0.7}, {"top_k": 5}, {"min_p": 0.1}, {"top_p": 0.9, "top_k": 7, "min_p": 0.05}], ids=str
)
def test_draws_follow_the_filtered_distribution(filters: dict[str, float]) -> None:
    logits = mx.random.normal((1, 12), key=mx.random.key(2)) * 2
    n, temperature = 6000, 0.8
    sampler = Sampler(temperature=temperature, seed=3, **filters)
    draws = sampler.choose(mx.repeat(logits, n, axis=0), 0).tolist()
    counts = np.bincount(draws, minlength=12) / n
    mx.random.seed(0)
    theirs = make_sampler(temperature, filters.get("top_p", 0), filters.get("min_p", 0), top_k=filters.get("top_k", 0))
    expected = np.bincount(theirs(mx.repeat(normalised(logits), 4 * n, axis=0)).tolist(), minlength=12) / (4 * n)
    assert np.abs(counts - expected).max() < 4 * math.sqrt(0.25 / n)
    assert ((counts > 0) <= (expected > 0)).all()


def test_penalty_and_bias_are_mlx_lms_row_by_row() -> None:
    history = mx.array([3, 4, 5, 6, 7, 8])
    sampler = Sampler(repetition_penalty=1.5, repetition_context_size=2, logit_bias=((9, 2.0), (1, -7.0)))
    rows = sampler.processed(LOGITS, history)
    processors = make_logits_processors({9: 2.0, 1: -7.0}, 1.5, 2)
    for i in range(4):
        row = LOGITS[i : i + 1] + 0
        for process in processors:
            row = process(history[: 3 + i], row)
        assert mx.array_equal(rows[i], row[0]).item()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -1.0),
        ("temperature", math.inf),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("top_k", -3),
        ("seed", -1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("repetition_context_size", 0),
        ("logit_bias", ((3, math.nan),)),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(SkipSpecError, match=name.split("_bias")[0]):
        Sampler(**{name: value})
