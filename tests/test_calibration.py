"""Costs: measured within a cache of their own, kept per machine and model, measured again where the file is no good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny

from mlx_skipspec import calibration, cost_files
from mlx_skipspec.calibration import measure
from mlx_skipspec.cost_files import costs_for
from mlx_skipspec.costs import REACH, Costs
from mlx_skipspec.drafters import LayerSkip, PromptLookup
from mlx_skipspec.folders import cache_folder
from mlx_skipspec.plan import SkipPlan

COSTS = Costs((100, 1100), ((1.0, 1.1, 1.5), (2.0, 2.1, 3.5)), {"skip": (0.2, 0.4)})


def skip() -> LayerSkip:
    return LayerSkip(SkipPlan.gap(tiny.DEPTH, 1, 1))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLX_SKIPSPEC_CACHE", str(tmp_path))
    return tmp_path / "costs"


class Measured:
    """Counts measurements instead of making them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        monkeypatch.setattr(cost_files, "measure", self)

    def __call__(self, *_: Any) -> Costs:
        self.times += 1
        return COSTS


def test_between_two_contexts_costs_are_linear_and_outside_bounded() -> None:
    assert COSTS.verify(1, 0) == COSTS.verify(1, 100) == 1.0
    assert COSTS.verify(2, 600) == pytest.approx(1.6)
    assert COSTS.verify(3, 2100) == pytest.approx(5.5)
    assert COSTS.verify(1, 10**9) == COSTS.verify(1, 100 + int(1000 * REACH))
    assert COSTS.draft("skip", 600) == pytest.approx(0.3)


def test_past_the_widest_pass_every_row_adds_what_one_did() -> None:
    assert COSTS.verify(5, 100) == pytest.approx(1.5 + 2 * 0.25)


def test_a_longer_context_that_was_measured_cheaper_by_noise_costs_the_same() -> None:
    assert Costs((0, 10), ((2.0,), (1.0,)), {}).verify(1, 20) == 2.0


def test_costs_survive_json() -> None:
    assert Costs.from_json(json.loads(json.dumps(COSTS.to_json()))) == COSTS


@pytest.mark.parametrize(
    "change",
    [
        {"contexts": [5, 5]},
        {"contexts": [1]},
        {"verify_seconds": [[1.0], [1.0, 2.0]]},
        {"verify_seconds": [[], []]},
        {"verify_seconds": [[-1.0], [1.0]]},
        {"verify_seconds": [[float("nan")], [1.0]]},
        {"draft_seconds": {"skip": [float("inf"), 1.0]}},
        {"draft_seconds": []},
        {"draft_seconds": {"skip": "ab"}},
    ],
)
def test_what_is_no_costs_is_a_value_error(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Costs.from_json(COSTS.to_json() | change)
    with pytest.raises(ValueError, match="no costs"):
        Costs.from_json([])


def test_measuring_covers_every_width_and_drafter_and_leaves_no_memory_behind() -> None:
    target, drafters = tiny.target(), [PromptLookup(), skip()]
    measure(target, drafters, widest=2)
    before = mx.get_active_memory()
    costs = measure(target, drafters, widest=6)
    assert mx.get_active_memory() <= before
    assert costs.widest == 6
    assert set(costs.draft_seconds) == {"lookup", "skip"}
    assert costs.draft("skip", 64) > 0
    assert Costs.from_json(costs.to_json()) == costs


@pytest.mark.parametrize("changes", [{"family": "mistral", "sliding_window": 18}, {"family": "qwen3"}])
def test_models_with_windows_are_measured_too(changes: dict[str, Any]) -> None:
    assert measure(tiny.target(**changes), [skip()], widest=3).verify(3, 500) > 0


def test_noise_in_a_narrow_pass_is_corrected_by_a_faster_wide_one() -> None:
    assert calibration._filled([1, 2, 3, 4], [1, 2, 4], [1.0, 9.0, 2.0]) == [1.0, 2.0, 2.0, 2.0]


def test_costs_are_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, target = Measured(monkeypatch), tiny.target()
    assert costs_for(target, [skip()]) == costs_for(target, [skip()]) == COSTS
    assert measured.times == 1
    costs_for(target, [skip()], recalibrate=True)
    assert measured.times == 2
    assert [file.suffix for file in cache.iterdir()] == [".json"]


def test_another_machine_model_thread_count_or_drafter_is_measured_anew(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, target = Measured(monkeypatch), tiny.target()
    costs_for(target, [skip()])
    costs_for(tiny.target(seed=5), [skip()])
    costs_for(target, [LayerSkip(SkipPlan.gap(tiny.DEPTH, 2, 2))])
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    costs_for(target, [skip()])
    monkeypatch.setattr(cost_files, "machine", lambda: {"cpu": "another"})
    costs_for(target, [skip()])
    assert measured.times == 5
    assert len(list(cache.iterdir())) == 5


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", '{"about": 1}', "WHOLE"])
def test_a_damaged_cache_is_measured_again_with_one_note(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    measured, target = Measured(monkeypatch), tiny.target()
    costs_for(target, [skip()])
    (file,) = cache.iterdir()
    whole = json.loads(file.read_text(encoding="utf-8"))
    whole["costs"]["contexts"] = [3]
    file.write_text(json.dumps(whole) if text == "WHOLE" else text, encoding="latin-1")
    assert costs_for(target, [skip()]) == COSTS
    assert measured.times == 2
    assert len(caplog.records) == 1
    assert costs_for(target, [skip()]) == COSTS
    assert measured.times == 2


def test_a_cache_that_cannot_be_written_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Measured(monkeypatch)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLX_SKIPSPEC_CACHE", str(tmp_path / "file" / "cache"))
    assert costs_for(tiny.target(), [skip()]) == COSTS
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_write_that_fails_leaves_the_old_file_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Measured(monkeypatch)
    costs_for(tiny.target(), [skip()])
    (file,) = cache.iterdir()
    before = file.read_text(encoding="utf-8")
    monkeypatch.setattr(cost_files.os, "replace", _no_space)
    costs_for(tiny.target(), [skip()], recalibrate=True)
    assert list(cache.iterdir()) == [file]
    assert file.read_text(encoding="utf-8") == before


def _no_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLX_SKIPSPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if cost_files.platform.system() == "Linux":
        assert cache_folder() == tmp_path / "mlx-skipspec"
