"""The star test: whoever guesses, the text is the one the target says alone."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import tiny
from drafters import DRAFTERS

from mlx_skipspec.decode import decode
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.stats import Stats
from mlx_skipspec.target import Target

SAMPLERS = {
    "greedy": GREEDY,
    "T=0.8": Sampler(temperature=0.8, seed=3),
    "top-p, penalty": Sampler(temperature=0.9, top_p=0.8, seed=4, repetition_penalty=1.3),
}
# The ring wraps twice and more: 24 prompt tokens and 60 of the answer in 20 rows.
CACHES: dict[str, dict[str, int]] = {
    "growing": {},
    "rotating": {"max_kv_size": 20},
    "quantised": {"bits": 8, "group_size": 32},
}
WINDOWED = {
    "llama": {},
    "mistral": {"sliding_window": 18},
    "qwen3": {"sliding_window": 18, "use_sliding_window": True, "max_window_layers": 3},
}
WIDTHS = (1, 2, 5)
TOKENS = 60

GRID = list(itertools.product(tiny.FAMILIES, DRAFTERS, SAMPLERS, WIDTHS, CACHES))


def pairwise(grid: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """A part of the grid in which every pair of values of any two axes still meets, found greedily."""

    def pairs(row: tuple[object, ...]) -> set[tuple[object, ...]]:
        return set(itertools.combinations(enumerate(row), 2))

    missing = set().union(*map(pairs, grid))
    chosen = []
    while missing:
        best = max(grid, key=lambda row: len(pairs(row) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


@cache
def target_of(family: str, windowed: bool = False) -> Target:
    return tiny.target(family, **(WINDOWED[family] if windowed else {}))


@cache
def plain(family: str, sampler: str, kind: str, seed: int, windowed: bool = False) -> list[int]:
    target = target_of(family, windowed)
    steps = decode(
        target, target.make_kv(**CACHES[kind]), tiny.prompt(seed), sampler=SAMPLERS[sampler], max_tokens=TOKENS
    )
    return [token for step in steps for token in step.tokens]


def assert_same(family: str, drafter: str, sampler: str, k: int, kind: str, seed: int, windowed: bool = False) -> None:
    target, prompt = target_of(family, windowed), tiny.prompt(seed)
    expected = plain(family, sampler, kind, seed, windowed)
    guesser = DRAFTERS[drafter](target, SAMPLERS[sampler], prompt + expected)
    kv = target.make_kv(**CACHES[kind])
    steps = list(
        decode(target, kv, prompt, drafter=guesser, draft_tokens=k, sampler=SAMPLERS[sampler], max_tokens=TOKENS)
    )
    assert [token for step in steps for token in step.tokens] == expected
    assert kv.length == len(prompt) + TOKENS - 1
    stats = Stats.of(steps)
    assert stats.tokens == TOKENS
    if drafter == "oracle":
        assert stats.accepted == stats.drafted > 0


@pytest.mark.parametrize(("family", "drafter", "sampler", "k", "kind"), pairwise(GRID))
def test_every_pair_of_choices_gives_the_plain_text(family: str, drafter: str, sampler: str, k: int, kind: str) -> None:
    assert_same(family, drafter, sampler, k, kind, seed=0)


@pytest.mark.parametrize("family", ["mistral", "qwen3"])
@pytest.mark.parametrize("drafter", ["gap+hvc", "periodic", "liar", "oracle"])
def test_windows_of_the_models_own_give_the_plain_text(family: str, drafter: str) -> None:
    assert_same(family, drafter, "T=0.8", 5, "growing", seed=1, windowed=True)


def test_plain_texts_are_not_loops_and_differ_between_seeds() -> None:
    texts = [plain(family, "T=0.8", "growing", seed) for family in tiny.FAMILIES for seed in range(2)]
    assert len(set(map(tuple, texts))) == len(texts)
    assert all(len(set(text)) > 12 for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "drafter", "sampler", "k", "kind"), GRID)
def test_every_choice_gives_the_plain_text(family: str, drafter: str, sampler: str, k: int, kind: str) -> None:
    for seed in range(2):
        assert_same(family, drafter, sampler, k, kind, seed)
        if kind != "rotating":
            assert_same(family, drafter, sampler, k, kind, seed, windowed=True)
