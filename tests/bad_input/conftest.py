"""Bad input is answered with one line that says what to do, exit code 2, nothing on stdout and nothing left on disk."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import checkpoint
import numpy as np
import pytest
from spoil import HIDDEN, SIZES, Refuse, change
from transformers.utils import logging as transformers_logging

from mlx_skipspec import api, chat_start, commands, loading, opening
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.cli import main
from mlx_skipspec.convert import fit, hf
from mlx_skipspec.loading import base_of, load_target


@pytest.fixture(autouse=True)
def quiet_transformers() -> Iterator[None]:
    """As in a process of its own, where the command line sets this before transformers is imported."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    yield
    transformers_logging.set_verbosity(level)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="session")
def model(home: Path) -> Path:
    folder = checkpoint.write(home / "model", **SIZES)
    change(folder / "tokenizer_config.json", model_max_length=SIZES["max_position_embeddings"])
    return folder


@pytest.fixture(scope="session")
def sidecar(home: Path, model: Path) -> Path:
    """A bridge for the model that adds nothing."""
    ones, zeros = np.ones(HIDDEN), np.zeros(HIDDEN)
    tensors = {"ln_gap.weight": ones, "ln_gap.bias": zeros, "ln_prev.weight": ones, "ln_prev.bias": zeros}
    tensors["proj.weight"] = np.zeros((HIDDEN, 2 * HIDDEN))
    Sidecar(base_of(load_target(model), "tiny"), head=1, tail=1, tensors=tensors).save(home / "sidecar")
    return home / "sidecar"


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A model folder to spoil."""
    return shutil.copytree(model, tmp_path / "copy")


@pytest.fixture
def bridge(sidecar: Path, tmp_path: Path) -> Path:
    """A sidecar folder to spoil."""
    return shutil.copytree(sidecar, tmp_path / "bridge")


def everything_in(folder: Path) -> dict[str, float]:
    return {str(path): path.lstat().st_mtime for path in folder.rglob("*")}


@pytest.fixture
def refuse(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Refuse:
    """Runs the command line and returns the one line it refuses with."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["mlx-skipspec", *map(str, arguments)])
        before = everything_in(tmp_path)
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("error: "), err
        assert err.count("\n") == 1, err
        assert left.value.code == 2
        assert everything_in(tmp_path) == before
        return err

    return run


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes opening a model an error of the test."""

    def opened(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr(opening, "open_model", opened)
    monkeypatch.setattr(hf, "load_target", opened)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes reading a model's weights an error of the test."""

    def read(*args: object) -> None:
        raise AssertionError("the weights were read")

    for asker in (api, chat_start, commands, fit, hf, loading):
        monkeypatch.setattr(asker, "read_weights", read)
