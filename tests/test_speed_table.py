"""The README's speed table says what the committed results say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_bench_stats import PAIRS, result

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "table.py"
MARKED = "# Title\n<!-- speed: python benchmarks/table.py -->\nold\n<!-- /speed -->\nrest\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(MARKED)
    (tmp_path / "results" / "abacus").mkdir(parents=True)
    made = result(PAIRS, model="tiny")
    (tmp_path / "results" / "abacus" / "bench_tiny.json").write_text(json.dumps(made))
    return tmp_path


def run(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--readme", str(home / "README.md"), "--results", str(home / "results")]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)


def test_the_table_stands_between_its_markers_and_the_check_agrees(home: Path) -> None:
    differs = run(home, "--check")
    assert differs.returncode == 1
    assert "run python benchmarks/table.py" in differs.stderr
    assert (home / "README.md").read_text() == MARKED
    assert run(home).returncode == 0
    lines = (home / "README.md").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("# Title", "rest")
    assert "old" not in lines
    assert lines[4].startswith("| abacus, libopenblas.so.0, 1 thread | tiny, float32 | skip | **1.50** (")
    assert run(home, "--check").returncode == 0


@pytest.mark.parametrize("readme", ["# Title\n", MARKED * 2], ids=["no place", "two places"])
def test_a_readme_without_one_place_for_it_is_refused(home: Path, readme: str) -> None:
    (home / "README.md").write_text(readme)
    done = run(home)
    assert done.returncode == 2
    assert "need the lines" in done.stderr
    assert (home / "README.md").read_text() == readme


def test_no_results_are_no_table(home: Path) -> None:
    (home / "results" / "abacus" / "bench_tiny.json").unlink()
    assert "need one" in run(home).stderr


def test_the_readme_says_what_the_committed_results_say() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
