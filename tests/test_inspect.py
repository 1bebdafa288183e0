"""`inspect` says whose bridge it is, how it was made and how well it drafts; as JSON its keys are a contract."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from random_sidecar import SIZE, sidecar

from mlx_skipspec.cli import main

MADE_BY = {"method": "unrolled training", "text": ["a.txt", "b.jsonl"], "steps": 7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    start = {"start": {"acceptance_by_position": [0.1, 0.2]}}
    sidecar(tiny.target(), made_by=MADE_BY | start, acceptance_by_position=(0.5, None)).save(tmp_path / "sidecar")
    return tmp_path / "sidecar"


def inspect(monkeypatch: pytest.MonkeyPatch, capfd: Any, *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", "inspect", *map(str, arguments)])
    main()
    return capfd.readouterr().out


def test_it_tells_people(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    said = inspect(monkeypatch, capfd, folder)
    for words in (
        "plan 2,2",
        "a.txt, b.jsonl",
        "accepted    0.50 - at draft position",
        "0.10 0.20 at the start of its training",
    ):
        assert words in said


def test_it_tells_machines(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    said = json.loads(inspect(monkeypatch, capfd, folder, "--json"))
    assert list(said) == [
        "base",
        "layers",
        "hidden_size",
        "vocab_size",
        "plan",
        "kind",
        "parameters",
        "bytes",
        "made_by",
        "acceptance_by_position",
        "heads",
    ]
    assert said["parameters"] == 2 * SIZE * SIZE + 4 * SIZE
    assert said["made_by"]["start"] == {"acceptance_by_position": [0.1, 0.2]}
    assert said["acceptance_by_position"] == [0.5, None]
