"""What is in the tree is in the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_holds_the_tree_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "tree"  # a copy: setuptools leaves its build folder in the tree it builds
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("mlx_skipspec", "convert"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(tree),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        str(file.relative_to(tree)).replace("convert/", "mlx_skipspec/convert/", 1)
        for folder in ("mlx_skipspec", "convert")
        for file in (tree / folder).rglob("*")
        if file.is_file() and file.suffix != ".md" and "egg-info" not in str(file)
    }
    assert packed == wanted
    assert "mlx_skipspec/py.typed" in packed
