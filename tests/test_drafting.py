"""Which drafter is chosen: the sidecar that is found or given, the plan of one's own, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from random_sidecar import sidecar

from mlx_skipspec.drafters import FirstOf, LayerSkip, NoDraft, PromptLookup
from mlx_skipspec.drafting import choose_drafter, find_sidecar
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.target import Target


def at_home(target: Target, above: Path) -> Target:
    """As if loaded from the folder `model`."""
    return Target(target.model, above / "model")


@pytest.mark.parametrize("place", ["model/skipspec", "model-skipspec"])
def test_a_sidecar_inside_or_beside_the_models_folder_is_found(tmp_path: Path, place: str) -> None:
    target = at_home(tiny.target(), tmp_path)
    assert find_sidecar(target) is None
    made = sidecar(target)
    made.save(tmp_path / place)
    assert find_sidecar(target) == made
    assert choose_drafter(target, "auto").mode == "lookup+skip(2,2)+hvc"
    assert choose_drafter(target, "skip").mode == "skip(2,2)+hvc"


def test_without_the_pace_the_same_drafters_guess_whenever_they_can() -> None:
    target = tiny.target()
    assert isinstance(choose_drafter(target, "skip", plan="1,1").unpaced, LayerSkip)
    assert isinstance(choose_drafter(target, "lookup").unpaced, PromptLookup)
    both = choose_drafter(target, "auto", plan="1,1").unpaced
    assert isinstance(both, FirstOf)
    assert [drafter.name for drafter in both.drafters] == ["lookup", "skip"]
    assert isinstance(choose_drafter(target, "none").unpaced, NoDraft)


@pytest.mark.parametrize("choice", ["auto", "skip"])
def test_another_models_sidecar_in_the_folder_is_an_error_and_not_another_drafter(tmp_path: Path, choice: str) -> None:
    sidecar(tiny.target(seed=0)).save(tmp_path / "model" / "skipspec")
    with pytest.raises(SkipSpecError, match="other weights"):
        choose_drafter(at_home(tiny.target(seed=1), tmp_path), choice)
    with pytest.raises(SkipSpecError, match="other weights"):
        choose_drafter(tiny.target(seed=1), choice, sidecar=tmp_path / "model" / "skipspec")


def test_a_bundled_sidecar_serves_its_own_model_and_is_silent_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_skipspec.drafting.BUNDLED", tmp_path)
    for seed in (0, 1):
        sidecar(tiny.target(seed=seed), made_by={"seed": seed}).save(tmp_path / str(seed))
    for seed in (0, 1):
        found = find_sidecar(tiny.target(seed=seed))
        assert found is not None
        assert found.made_by == {"seed": seed}
    assert choose_drafter(tiny.target(seed=2)).mode == "lookup"


def test_of_several_bundled_sidecars_the_plans_own_serves_else_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_skipspec.drafting.BUNDLED", tmp_path)
    sidecar(tiny.target()).save(tmp_path / "a")
    sidecar(tiny.target(), head=1, tail=1).save(tmp_path / "b")
    for plan, mode in (
        (None, "skip(2,2)+hvc"),
        ("1,1", "skip(1,1)+hvc"),
        ("2,2", "skip(2,2)+hvc"),
        ("3,1", "skip(3,1)"),
    ):
        assert choose_drafter(tiny.target(), "skip", plan=plan).mode == mode


def test_a_plan_of_ones_own_goes_before_a_sidecar_that_was_found_but_not_one_that_was_given(tmp_path: Path) -> None:
    target = at_home(tiny.target(), tmp_path)
    sidecar(target).save(tmp_path / "model" / "skipspec")
    assert choose_drafter(target, "skip", plan="1,1").mode == "skip(1,1)"
    assert choose_drafter(target, "skip", plan="2,2").mode == "skip(2,2)+hvc"
    with pytest.raises(SkipSpecError, match="bridges plan 2,2, not 1,1"):
        choose_drafter(target, "skip", plan="1,1", sidecar=tmp_path / "model" / "skipspec")


@pytest.mark.parametrize(
    ("choice", "options", "message"),
    [
        ("skip", {}, "found no sidecar for this model; need --sidecar DIR or --plan"),
        ("best", {}, "drafter='best'; need one of auto, none, skip, lookup"),
        ("none", {"plan": "2,2"}, "uses no --plan"),
        ("lookup", {"sidecar": Path("x")}, "uses no --plan and no --sidecar"),
        ("skip", {"sidecar": Path("nowhere")}, "No skipspec.json in nowhere"),
        ("auto", {"plan": "3,3"}, "leaves no layer to skip"),
    ],
)
def test_a_drafter_that_cannot_be_had_is_never_replaced_in_silence(
    choice: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mlx_skipspec.drafting.BUNDLED", tmp_path)
    with pytest.raises(SkipSpecError, match=message):
        choose_drafter(tiny.target(), choice, **options)
