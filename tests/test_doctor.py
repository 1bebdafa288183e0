"""What `doctor` finds and advises; by the formula, and about the machine it was told of."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import checkpoint
import pytest
from random_sidecar import bridge_for

from mlx_skipspec import doctor, opening
from mlx_skipspec.blas import NO_SPEED_UP
from mlx_skipspec.cli import main
from mlx_skipspec.doctor import advice, expected

CPU = {"cpu": "abacus", "cores": 2, "device": "Device(cpu, 0)", "gpu": ["x86_64", "abacus"]}
M1 = {"cpu": "arm", "cores": 8, "device": "Device(gpu, 0)", "gpu": ["applegpu_g13g", "Apple M1"]}
MODEL = {"quantised": False, "verify_curve": [1.0, 1.1, 1.2], "mode": "skip(1,1)+hvc", "draft_tokens": 2}


def found(device: dict[str, Any] = CPU, blas: str = "libopenblas.so.0", **model: Any) -> dict[str, Any]:
    return {"device": device, "blas": {"name": blas, "threads": 1}, "model": MODEL | model}


def test_the_formula_takes_the_number_of_draft_tokens_that_pays_best() -> None:
    assert expected([0.5, 0.5], [1.0, 1.1, 1.2], 0.1) == (2, pytest.approx(1.75 / 1.4))
    assert expected([0.5, 0.1], [1.0, 1.1, 1.2], 0.1) == (1, pytest.approx(1.5 / 1.2))
    assert expected([0.5, 0.5], [1.0, 2.0, 3.0], 0.1) == (0, 1.0)
    assert expected([], [1.0, 1.1], 0.0) == (0, 1.0)
    assert expected([1.0] * 9, [1.0, 1.0], 0.0) == (1, 2.0)


def test_reference_blas_is_named_with_the_command_that_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "openblas", lambda: "/lib/libopenblas.so.0")
    assert "LD_PRELOAD=/lib/libopenblas.so.0 OPENBLAS_NUM_THREADS=1" in advice(found(blas="reference"))[0]
    monkeypatch.setattr(doctor, "openblas", lambda: None)
    assert advice(found(blas="reference"))[0] == NO_SPEED_UP


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (found(M1), "M1 verifies"),
        (found(quantised=True), "Quantised weights"),
        (found(verify_curve=[1.0, 1.9, 2.9]), "0.95 of a plain step"),
        (found(mode=None), "no sidecar"),
        (found(draft_tokens=0), "do not pay"),
        (found(), "drafting 2 pays best"),
        (found() | {"model": None}, "Give --model"),
    ],
    ids=["M1", "quantised", "linear", "no sidecar", "no gain", "gain", "no model"],
)
def test_each_finding_has_its_advice(state: dict[str, Any], said: str) -> None:
    assert any(said in line for line in advice(state))


def test_a_healthy_machine_gets_no_warning() -> None:
    assert len(advice(found())) == 1


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", "doctor", *options])
    main()


def test_without_a_model_none_is_opened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(opening, "open_model", lambda *given: pytest.fail("a model was opened"))
    run(monkeypatch, "--json")
    made = json.loads(capsys.readouterr().out)
    assert list(made) == ["versions", "device", "blas", "model", "advice"]
    assert set(made["versions"]) == {"python", "os", "mlx", "mlx-lm", "mlx-skipspec"}
    run(monkeypatch)
    assert "Give --model" in capsys.readouterr().out


def test_a_models_costs_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = checkpoint.write(tmp_path / "model")
    run(monkeypatch, "--json", "--model", str(folder))
    bare = json.loads(capsys.readouterr().out)["model"]
    assert (bare["mode"], bare["expected_speedup"], list(bare["draft_cost"])) == (None, None, ["lookup"])
    bridge_for(folder, folder / "skipspec")
    run(monkeypatch, "--json", "--model", str(folder))
    model = json.loads(capsys.readouterr().out)["model"]
    assert model["verify_curve"][0] == 1.0
    assert len(model["verify_curve"]) == 8
    assert list(model["draft_cost"]) == ["skip"]
    assert model["expected_speedup"] >= 1.0
    run(monkeypatch, "--model", str(folder))
    assert "from the layers alone" in capsys.readouterr().out
