"""How likely a guess is right, from what became of those like it."""

from __future__ import annotations

import pytest

from mlx_skipspec.acceptance import SURE, Acceptance


def learned(right: int, wrong: int, luck: float = 0.0) -> Acceptance:
    """Of kind "a", so many right, then so many wrong."""
    acceptance = Acceptance({"a": 0.5, "b": 0.5, "c": 0.9}, luck)
    for fate in [True] * right + [False] * wrong:
        acceptance.learn(("a", 0), fate)
    return acceptance


def test_a_kind_nobody_has_seen_is_as_likely_as_its_coarser_one() -> None:
    assert learned(0, 0).of(("a", 0)) == 0.5
    assert learned(30, 0).of(("a", 1)) > 0.8
    assert learned(0, 30).of(("a", 1)) < 0.2
    assert learned(30, 0).of(("b", 0)) == 0.5


def test_without_luck_a_text_says_nothing_of_other_kinds() -> None:
    assert learned(0, 30).of(("b", 0)) == 0.5


@pytest.mark.parametrize("luck", [2.0, 4.0])
def test_a_text_is_lucky_or_not_in_all_kinds(luck: float) -> None:
    assert learned(0, 8, luck).of(("b", 0)) < 0.35 < 0.6 < learned(8, 0, luck).of(("b", 0))
    assert learned(0, 3, 2.0).of(("b", 0)) < learned(0, 3, 4.0).of(("b", 0)) < 0.5
    acceptance = learned(0, 8, luck)
    acceptance.begin()
    assert acceptance.of(("b", 0)) == 0.5


def test_no_luck_makes_sure() -> None:
    assert learned(50, 0, 2.0).of(("c", 0)) == SURE
