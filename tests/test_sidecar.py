"""A sidecar on disk: what is written is read; what is damaged is refused; what fails leaves nothing behind."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from random_sidecar import sidecar

from mlx_skipspec import artifacts
from mlx_skipspec.artifacts import BRIDGE, MANIFEST, Sidecar
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.fingerprint import PROBES


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = sidecar(tiny.target())
    made.save(tmp_path / "sidecar")
    read = Sidecar.load(tmp_path / "sidecar")
    assert read == made
    assert {name: value.dtype for name, value in read.tensors.items()} == dict.fromkeys(made.tensors, np.float16)
    assert all(np.array_equal(value, made.tensors[name].astype(np.float16)) for name, value in read.tensors.items())


def test_the_manifest_says_all_there_is_to_know_in_plain_json(tmp_path: Path) -> None:
    sidecar(tiny.target()).save(tmp_path / "sidecar")
    manifest = json.loads((tmp_path / "sidecar" / MANIFEST).read_text(encoding="utf-8"))
    fingerprint = manifest["base"].pop("fingerprint")
    assert len(fingerprint) == 4 * PROBES
    assert manifest == {
        "schema": 1,
        "kind": "hvc",
        "base": {"name": "tiny", "depth": 6, "hidden_size": 64, "vocab_size": 96},
        "head": 2,
        "tail": 2,
        "made_by": {"method": "chance", "tokens": 7, "text": ["a.txt"]},
        "acceptance_by_position": [0.5, 0.25, None],
    }
    assert sorted(path.name for path in (tmp_path / "sidecar").iterdir()) == [BRIDGE, MANIFEST]


def test_everyone_may_read_a_sidecar(tmp_path: Path) -> None:
    sidecar(tiny.target()).save(tmp_path / "sidecar")
    paths = [tmp_path / "sidecar", *(tmp_path / "sidecar").iterdir()]
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in paths)


@contextmanager
def a_file_may_have(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path) -> None:
    made = sidecar(tiny.target())
    with pytest.raises(SkipSpecError, match="nothing was left behind"), a_file_may_have(4096):
        made.save(tmp_path / "sidecar")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def interrupted(*_: Any) -> None:
        seen.append([path.name for path in tmp_path.iterdir()])
        raise KeyboardInterrupt

    monkeypatch.setattr(artifacts, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sidecar(tiny.target()).save(tmp_path / "sidecar")
    assert list(tmp_path.iterdir()) == []
    assert len(seen[0]) == 1  # it was being written, under another name
    assert seen[0] != ["sidecar"]


def test_a_folder_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    made = sidecar(tiny.target())
    made.save(tmp_path / "sidecar")
    with pytest.raises(SkipSpecError, match="exists; need a new folder"):
        replace(made, head=1).save(tmp_path / "sidecar")
    assert Sidecar.load(tmp_path / "sidecar") == made
    assert [path.name for path in tmp_path.iterdir()] == ["sidecar"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SkipSpecError, match="Cannot write"):
        sidecar(tiny.target()).save(tmp_path / "file" / "sidecar")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "No skipspec.json"),
    "no bridge": (lambda folder: (folder / BRIDGE).unlink(), "cannot be read"),
    "a bridge cut short": (
        lambda folder: (folder / BRIDGE).write_bytes((folder / BRIDGE).read_bytes()[:99]),
        "cannot be read",
    ),
    "a bridge in bf16": (
        lambda folder: mx.save_safetensors(str(folder / BRIDGE), {"proj.weight": mx.zeros((2, 2), mx.bfloat16)}),
        "cannot be read",
    ),
    "no JSON": (lambda folder: (folder / MANIFEST).write_text("{"), "cannot be read"),
    "a list": (lambda folder: (folder / MANIFEST).write_text("[]"), "cannot be read"),
    "a word": (lambda folder: (folder / MANIFEST).write_text('"schema"'), "cannot be read"),
    "no text": (lambda folder: (folder / MANIFEST).write_bytes(b"\xff"), "cannot be read"),
    "another schema": (lambda folder: change(folder, schema=2), "another schema; need 1"),
    "another kind": (lambda folder: change(folder, kind="eagle"), "holds a 'eagle'; need one of hvc, hvc-mlp"),
    "a key too many": (lambda folder: change(folder, colour="red"), "cannot be read"),
    "no base": (lambda folder: change(folder, base=None), "cannot be read"),
}


def change(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    (folder / MANIFEST).write_text(json.dumps(manifest | changes), encoding="utf-8")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_sidecar_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    sidecar(tiny.target()).save(tmp_path / "sidecar")
    spoil, message = DAMAGES[damage]
    spoil(tmp_path / "sidecar")
    with pytest.raises(SkipSpecError, match=message):
        Sidecar.load(tmp_path / "sidecar")
