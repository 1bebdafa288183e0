"""Plans: which layers are kept, which are skipped, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from mlx_skipspec import SkipPlan, SkipSpecError


@pytest.mark.parametrize(
    ("plan", "before", "skipped", "after", "name"),
    [
        (SkipPlan.gap(8, 2, 3), [0, 1], [2, 3, 4], [5, 6, 7], "2,3"),
        (SkipPlan.gap(8, 1, 1), [0], [1, 2, 3, 4, 5, 6], [7], "1,1"),
        (SkipPlan.gap(3, 1, 1), [0], [1], [2], "1,1"),
        (SkipPlan.early_exit(4, 3), [0, 1, 2], [3], [], "3,0"),
        (SkipPlan.late_start(4, 1), [], [0, 1, 2], [3], "0,1"),
        (SkipPlan.keeping(5, [4, 0, 1], "mine"), [0, 1], [2, 3], [4], "mine"),
        (SkipPlan.masks(5, [0, 4], [4, 0, 4]), [0], [1, 2, 3], [4], "masks-2a2m"),
    ],
    ids=lambda value: value.name if isinstance(value, SkipPlan) else "",
)
def test_before_gap_and_behind_make_up_the_model(
    plan: SkipPlan, before: list[int], skipped: list[int], after: list[int], name: str
) -> None:
    assert plan.contiguous
    assert (list(plan.before), list(plan.skipped), list(plan.after)) == (before, skipped, after)
    assert list(plan.kept) == before + after == sorted({*plan.attention, *plan.mlp})
    assert plan.name == name
    assert [*plan.before, *plan.skipped, *plan.after] == list(range(plan.depth))


def test_early_exit_and_late_start_are_gaps_at_the_ends() -> None:
    assert SkipPlan.early_exit(8, 3) == SkipPlan.gap(8, 3, 0)
    assert SkipPlan.late_start(8, 3) == SkipPlan.gap(8, 0, 3)


@pytest.mark.parametrize("depth", [2, 6, 7, 32])
def test_periodic_keeps_so_many_layers_spread_evenly_and_the_first(depth: int) -> None:
    for keep in range(1, depth):
        kept = SkipPlan.periodic(depth, keep).kept
        gaps = [b - a for a, b in zip(kept, [*kept[1:], depth], strict=True)]
        assert len(kept) == keep
        assert kept[0] == 0
        assert max(gaps) - min(gaps) <= 1


def test_masks_keep_attention_and_mlp_apart() -> None:
    plan = SkipPlan.masks(6, attention=[5, 0, 1], mlp=[2, 0])
    assert (plan.attention, plan.mlp, plan.kept) == ((0, 1, 5), (0, 2), (0, 1, 2, 5))


@pytest.mark.parametrize(
    "plan",
    [SkipPlan.periodic(6, 3), SkipPlan.masks(6, [0, 1], [0]), SkipPlan.masks(6, range(6), [0, 5])],
    ids=lambda plan: plan.name,
)
def test_a_plan_without_a_single_gap_has_no_edges(plan: SkipPlan) -> None:
    assert not plan.contiguous
    for edge in ("before", "skipped", "after"):
        with pytest.raises(SkipSpecError, match="has no single gap"):
            getattr(plan, edge)


def test_equal_plans_are_equal_and_frozen() -> None:
    plan = SkipPlan.gap(8, 2, 2)
    assert plan == SkipPlan.parse("2,2", 8)
    assert hash(plan) == hash(SkipPlan.gap(8, 2, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.depth = 9  # type: ignore[misc]


def test_a_plan_that_skips_nothing_says_what_it_got_and_needs() -> None:
    with pytest.raises(SkipSpecError) as error:
        SkipPlan.gap(32, 20, 12)
    assert str(error.value) == (
        "SkipPlan(head=20, tail=12) leaves no layer to skip in a 32-layer model; need head + tail <= 31."
    )


@pytest.mark.parametrize(("head", "tail"), [(20, 11), (31, 0), (0, 31), (1, 1)])
def test_a_plan_that_skips_one_layer_is_enough(head: int, tail: int) -> None:
    assert len(SkipPlan.gap(32, head, tail).skipped) == 32 - head - tail


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SkipPlan.gap(8, 0, 0), "keeps no layer"),
        (lambda: SkipPlan.gap(8, -1, 2), "head >= 0"),
        (lambda: SkipPlan.gap(8, 2, -1), "tail >= 0"),
        (lambda: SkipPlan.early_exit(8, 8), "need head \\+ tail <= 7"),
        (lambda: SkipPlan.periodic(8, 0), "1 <= keep <= 7"),
        (lambda: SkipPlan.periodic(8, 8), "1 <= keep <= 7"),
        (lambda: SkipPlan.keeping(4, [0, 4], "x"), "keeps layer 4, but the model has layers 0 to 3"),
        (lambda: SkipPlan.masks(4, [0], [-1]), "keeps layer -1"),
        (lambda: SkipPlan.masks(4, range(4), range(4)), "skips nothing"),
    ],
)
def test_impossible_plans_are_refused(make: object, message: str) -> None:
    with pytest.raises(SkipSpecError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(("text", "head", "tail"), [("2,3", 2, 3), (" 1 , 0 ", 1, 0), ("0,7", 0, 7)])
def test_a_plan_is_read_as_people_write_it(text: str, head: int, tail: int) -> None:
    assert SkipPlan.parse(text, 8) == SkipPlan.gap(8, head, tail)


@pytest.mark.parametrize("text", ["", "2", "2,2,2", "a,b", "2;2", "2.0,2", ","])
def test_what_is_not_two_numbers_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SkipSpecError, match=r"is not two numbers; write --plan HEAD,TAIL, e\.g\. 2,2"):
        SkipPlan.parse(text, 8)


def test_a_written_plan_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(SkipSpecError, match="need head \\+ tail <= 7"):
        SkipPlan.parse("4,4", 8)
