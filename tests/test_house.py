"""The house plan: imports only point down, heavy ones come late, and the package root is lazy."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_skipspec
import mlx_skipspec.convert

PACKAGE = Path(mlx_skipspec.__file__).parent
FLOORS = [
    {
        "errors",
        "blas",
        "plan",
        "step",
        "stats",
        "costs",
        "acceptance",
        "folders",
        "fingerprint",
        "base_model",
        "head_measured",
        "head_files",
        "artifacts",
    },
    {"hvc", "heads", "layer_kv", "kv", "sampling"},
    {"models", "target"},
    {"passes", "drafters", "prospect", "calibration", "cost_files", "sources", "pace"},
    {"decode"},
    {
        "loading",
        "head_choice",
        "drafting",
        "text",
        "prompts",
        "api",
        "messages",
        "thoughts",
        "rendering",
        "prompt_cache",
        "prompt_cache_files",
        "kept_cache",
        "chooser",
        "conversation",
        "report",
        "check",
        "bench",
        "bench_stats",
        "bench_report",
        "doctor",
    },
    {
        "flags",
        "cli",
        "opening",
        "commands",
        "bench_commands",
        "terminal",
        "chat_commands",
        "chat",
        "chat_start",
        "__main__",
        "__init__",
    },
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(file: Path) -> set[str]:
    """Modules a file imports anywhere in it, functions and type-checking blocks included."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "mlx_skipspec" and len(parts) > 1 and parts[1] in FLOOR else None


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_only_point_down(file: Path) -> None:
    own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in FLOOR, f"{file.name} has no floor in the house plan"
    for module in imports(file):
        other = room(module)
        assert other is None or FLOOR[other] <= FLOOR[own], f"{own} (floor {FLOOR[own]}) imports {other}"


@pytest.mark.parametrize("file", [f for f in FILES if f.stem in FLOORS[0]], ids=lambda file: file.stem)
def test_the_ground_floor_knows_neither_mlx_nor_torch(file: Path) -> None:
    assert not {module.split(".")[0] for module in imports(file)} & {"mlx", "mlx_lm", "torch", "transformers"}


def test_convert_is_only_asked_by_the_doors() -> None:
    askers = {f.stem for f in FILES if any(module.startswith("mlx_skipspec.convert") for module in imports(f))}
    assert askers <= FLOORS[6]


@pytest.mark.parametrize(
    "file", FILES + sorted(Path(mlx_skipspec.convert.__file__).parent.glob("*.py")), ids=lambda f: f.name
)
def test_no_file_is_two_rooms(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 300
    assert file.stem not in {"utils", "util", "helpers", "misc", "common"}


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_package_root_and_the_help_need_neither_mlx_nor_torch() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['mlx', 'mlx.core', 'mlx_lm', 'torch', 'transformers']));"
        "import mlx_skipspec, mlx_skipspec.convert; from mlx_skipspec import SkipPlan, SkipSpecError;"
        "from mlx_skipspec.cli import cli; cli(['generate', '--help'])"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert "--draft-tokens" in result.stdout


def test_the_help_answers_in_under_a_third_of_a_second() -> None:
    """Seconds of processor time: what the machine does besides is not ours."""

    def seconds() -> float:
        started = os.times()
        assert run("from mlx_skipspec.cli import cli; cli(['--help'])").returncode == 0
        ended = os.times()
        return ended.children_user - started.children_user + ended.children_system - started.children_system

    assert min(seconds() for _ in range(5)) < 0.3


def test_convert_can_only_be_imported_under_our_name() -> None:
    tree = Path(mlx_skipspec.convert.__file__).parent.parent
    result = run(f"import sys; sys.path.insert(0, {str(tree)!r}); import convert")
    assert result.returncode
    assert "mlx_skipspec.convert" in result.stderr


def test_every_public_name_is_there() -> None:
    assert all(getattr(mlx_skipspec, name) is not None for name in mlx_skipspec.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        mlx_skipspec.nonsense  # noqa: B018
