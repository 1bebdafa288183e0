"""`build-head`: what is built is what runs, what is measured is recorded, and what cannot be is refused in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import checkpoint
import pytest
from loaded_twice import PROMPT
from random_sidecar import bridge_for
from small_heads import KINDS
from test_sidecar import a_file_may_have
from training_text import text

from mlx_skipspec import load, stream_generate
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.cli import main
from mlx_skipspec.convert import head_text, heads
from mlx_skipspec.convert.hf import convert
from mlx_skipspec.drafting import choose_drafter
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.head_files import FILES


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("build") / "model")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "words.txt"
    file.write_text(text(), encoding="utf-8")
    return file


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HELD_OUT": 1, "CALIBRATING": 1, "TRAINING": 2, "QUERIES": 16, "REPEATS": 2}.items():
        monkeypatch.setattr(head_text, name, value)


def build(model: Path, out: Path, words: Path, kind: str = "clusters") -> None:
    main_with("build-head", "--kind", kind, "--model", model, "--out", out, "--text", words)


def main_with(*arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["mlx-skipspec", *map(str, arguments)])
        main()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_built_is_measured_runs_and_changes_no_text(
    model: Path, words: Path, tmp_path: Path, kind: str, capfd: Any
) -> None:
    out = bridge_for(model, tmp_path / "sidecar")
    build(model, out, words, kind)
    assert f"{kind}: recall" in capfd.readouterr().err
    of = Sidecar.load(out).heads[kind].measured
    assert 0 <= of.recall <= 1
    assert of.queries == 16
    assert min(of.seconds, of.dense_seconds, of.build_seconds, of.layers_seconds, *of.pass_seconds) > 0
    assert len(of.pass_seconds) == 4
    assert {path.name for path in out.iterdir()} == {"skipspec.json", "hvc.safetensors", FILES[kind]}
    target, tokenizer = load(model)
    drafting = choose_drafter(target, "skip", sidecar=out, head=kind)
    assert drafting.mode.endswith(f"+{kind}")
    plain, drafted = (
        [response.token for response in stream_generate(target, tokenizer, PROMPT, 24, drafting=who)]
        for who in ("none", drafting)
    )
    assert plain == drafted
    main_with("inspect", out, "--json")
    assert json.loads(capfd.readouterr().out)["heads"][kind]["recall"] == of.recall


def test_a_new_folder_becomes_a_copy_of_the_models_own_sidecar(model: Path, words: Path, tmp_path: Path) -> None:
    own = bridge_for(model, model / "skipspec")
    try:
        build(model, tmp_path / "new" / "sidecar", words)
    finally:
        for file in own.iterdir():
            file.unlink()
        own.rmdir()
    assert list(Sidecar.load(tmp_path / "new" / "sidecar").heads) == ["clusters"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["sidecar"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_model_takes_the_heads_along(model: Path, words: Path, tmp_path: Path, kind: str) -> None:
    out = bridge_for(model, tmp_path / "sidecar")
    build(model, out, words, kind)
    convert(str(model), tmp_path / "converted", quantise=True, q_group_size=32, q_bits=8, hvc=out)
    target, _ = load(tmp_path / "converted", dtype="checkpoint")
    assert choose_drafter(target, "skip", head=kind).mode.endswith(f"+{kind}")


def refused(capfd: Any, *arguments: object) -> str:
    with pytest.raises(SystemExit) as left:
        main_with("build-head", *arguments)
    assert left.value.code == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ")
    return said


def test_what_cannot_be_built_is_refused_and_leaves_all_as_it_was(
    model: Path, words: Path, tmp_path: Path, capfd: Any
) -> None:
    out = bridge_for(model, tmp_path / "sidecar")
    before = {path: path.read_bytes() for path in out.iterdir()}
    (tmp_path / "short.txt").write_text(text(3000), encoding="utf-8")
    other = checkpoint.write(tmp_path / "other", seed=9)
    kind = ("--kind", "clusters", "--text")
    for arguments, message in (
        ((*kind, words, "--model", model, "--out", tmp_path / "new"), "this model has none to copy"),
        ((*kind, words, "--model", model, "--out", tmp_path), "need a sidecar folder"),
        ((*kind, words, "--model", other, "--out", out), "other weights"),
        ((*kind, tmp_path / "none.txt", "--model", model, "--out", out), "is no file"),
        ((*kind, tmp_path / "short.txt", "--model", model, "--out", out), "windows of 256 tokens; need 4"),
        (("--kind", "best", "--model", model, "--out", out), "'best' is not one of"),
    ):
        assert message in refused(capfd, *arguments)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "short.txt", "sidecar"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("place", ["there", "new"])
def test_a_build_that_fails_late_leaves_all_as_it_was(
    model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, place: str
) -> None:
    sidecar = Sidecar.load(bridge_for(model, tmp_path / "there"))
    before = {path: path.read_bytes() for path in (tmp_path / "there").iterdir()}

    def failed(*_: Any) -> None:
        raise error

    monkeypatch.setattr(heads, "measure", failed)
    target, tokenizer = load(model)
    with pytest.raises((SkipSpecError, KeyboardInterrupt), match=r"No space left on device|^$"):
        heads.build_head(target, tokenizer, "clusters", sidecar, tmp_path / place, [words])
    assert {path: path.read_bytes() for path in (tmp_path / "there").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_leaves_all_as_it_was(model: Path, words: Path, tmp_path: Path, kind: str) -> None:
    sidecar = Sidecar.load(bridge_for(model, tmp_path / "there"))
    before = {path: path.read_bytes() for path in (tmp_path / "there").iterdir()}
    target, tokenizer = load(model)
    with pytest.raises(SkipSpecError, match=r"Cannot write into .* the sidecar is as it was"), a_file_may_have(64):
        heads.build_head(target, tokenizer, kind, sidecar, tmp_path / "there", [words])
    assert {path: path.read_bytes() for path in (tmp_path / "there").iterdir()} == before
