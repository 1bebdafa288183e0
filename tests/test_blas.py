"""Which BLAS runs is asked of the process itself, and a benchmark starts again only when that changes something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlx_skipspec import blas
from mlx_skipspec.blas import Blas, better_environment, blas_in_use, openblas, with_openblas

FOUND = "/lib/openblas-pthread/libopenblas.so.0"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "openblas", lambda: FOUND)


@pytest.mark.usefixtures("found")
def test_openblas_is_preloaded_with_one_thread() -> None:
    assert better_environment({"A": "b"}, "linux") == {"A": "b", "LD_PRELOAD": FOUND, "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.usefixtures("found")
def test_the_threads_people_ask_for_are_honoured() -> None:
    better = better_environment({"OPENBLAS_NUM_THREADS": "2"}, "linux")
    assert better is not None
    assert better["OPENBLAS_NUM_THREADS"] == "2"


@pytest.mark.usefixtures("found")
def test_what_is_preloaded_already_stays_so() -> None:
    better = better_environment({"LD_PRELOAD": "libjemalloc.so"}, "linux")
    assert better is not None
    assert better["LD_PRELOAD"] == f"{FOUND} libjemalloc.so"


@pytest.mark.usefixtures("found")
def test_it_starts_again_once_only() -> None:
    better = better_environment({}, "linux")
    assert better is not None
    assert better_environment(better, "linux") is None


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize("preloaded", ["libblis.so.4", "/opt/libmkl_rt.so"])
def test_another_blas_people_chose_is_left_alone(preloaded: str) -> None:
    assert better_environment({"LD_PRELOAD": preloaded}, "linux") is None


def test_an_openblas_people_preloaded_gets_one_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "openblas", lambda: pytest.fail("nothing to look for"))
    better = better_environment({"LD_PRELOAD": "/opt/libopenblas.so"}, "linux")
    assert better == {"LD_PRELOAD": "/opt/libopenblas.so", "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.usefixtures("found")
def test_other_systems_have_their_own() -> None:
    assert better_environment({}, "darwin") is None


def test_without_an_openblas_nothing_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "openblas", lambda: None)
    assert better_environment({}, "linux") is None


def test_the_new_process_runs_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(blas, "better_environment", lambda *_: {"A": "b"})
    monkeypatch.setattr(blas.os, "execve", lambda *given: started.append(given))
    monkeypatch.setattr(blas.sys, "orig_argv", ["python", "-X", "dev", "-m", "mlx_skipspec", "bench"])
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    with_openblas()
    assert started == [(sys.executable, [sys.executable, "-X", "dev", "-m", "mlx_skipspec", "bench"], {"A": "b"})]


def test_a_program_that_has_mlx_loaded_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas.os, "execve", lambda *given: pytest.fail("that was somebody's program"))
    monkeypatch.setitem(sys.modules, "mlx.core", sys.modules.get("mlx.core", sys))
    with_openblas()


def test_the_first_place_that_has_one_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(blas, "find_library", lambda name: None)
    monkeypatch.setattr(blas, "PLACES", (str(tmp_path / "none"), str(tmp_path)))
    assert openblas() is None
    (tmp_path / "libopenblasp.so.0").touch()
    assert openblas() == str(tmp_path / "libopenblasp.so.0")


@pytest.mark.skipif(sys.platform != "linux", reason="Accelerate elsewhere")
def test_the_library_in_use_is_the_one_the_loader_resolves_to() -> None:
    code = "from mlx_skipspec.blas import blas_in_use as b; print(b().name, b().threads)"
    library = openblas()
    environments = [({}, "reference 1"), *([({"LD_PRELOAD": library}, f"{Path(library).name} 2")] if library else [])]
    for environment, expected in environments:
        environment = {"OPENBLAS_NUM_THREADS": "2", "PATH": "/usr/bin", **environment}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert done.stdout.split() == expected.split(), done.stderr


def test_a_blas_says_its_name_and_its_threads() -> None:
    assert [str(blas) for blas in (Blas("a", 1), Blas("a", 2), Blas("a", None), Blas("reference", 1))] == [
        "a, 1 thread",
        "a, 2 threads",
        "a",
        "reference BLAS, 1 thread",
    ]
    assert blas_in_use().name
