"""The lines of metrics: one for each step, also when some are taken again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlx_skipspec.convert.metrics import Metrics
from mlx_skipspec.errors import SkipSpecError


def steps(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text(encoding="utf-8").splitlines()]


def test_lines_of_steps_that_are_taken_again_are_dropped(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "run" / "metrics.jsonl")
    metrics.keep(0)  # nothing is there, nothing is made
    assert not metrics.file.parent.exists()
    for step in range(5):
        metrics.add({"step": step})
    metrics.keep(3)
    metrics.add({"step": 3})
    assert steps(metrics.file) == [0, 1, 2, 3]
    assert [file.name for file in metrics.file.parent.iterdir()] == ["metrics.jsonl"]


def test_a_full_disk_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in range(3):
        metrics.add({"step": step})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SkipSpecError, match=r"Writing .*metrics.jsonl failed \(No space left on device\); make room"):
        metrics.keep(1)
    assert steps(metrics.file) == [0, 1, 2]
