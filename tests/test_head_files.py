"""Heads in a sidecar: listed with whose they are; another model's, a damaged or a missing one is refused; writing one
never leaves a sidecar that is not whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from random_sidecar import sidecar
from safetensors.numpy import load_file, save_file
from small_heads import KINDS, rows_of, states

from mlx_skipspec import artifacts
from mlx_skipspec.artifacts import MANIFEST, Sidecar, attach
from mlx_skipspec.convert import heads as building
from mlx_skipspec.drafting import check_choice, choose_drafter
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.head_choice import HEADS, choose_head, fastest, head_fingerprint
from mlx_skipspec.head_files import FILES, HeadFile
from mlx_skipspec.head_measured import Measured
from mlx_skipspec.target import Target

MEASURED = Measured(0.9, 100, 0.1, 1.0, 5.0, 0.2, (4.0, 4.1, 4.2, 4.3))


def built(kind: str, target: Target, file: Path) -> HeadFile:
    made = {
        "clusters": lambda: building.clusters(rows_of(target), target.vocab_size, states(target), states(target)),
        "subset": lambda: building.subset(np.arange(20).reshape(2, 10), target.vocab_size),
        "ann": lambda: building.index(rows_of(target), target.vocab_size, states(target)),
    }
    settings, write = made[kind]()
    write(file)
    return HeadFile.of(kind, file, head_fingerprint(target), settings, MEASURED)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sidecar with every kind of head."""
    home = tmp_path_factory.mktemp("whole")
    sidecar(tiny.target()).save(home / "sidecar")
    for kind in KINDS:
        attach(home / "sidecar", built(kind, tiny.target(), home / kind))
    return home / "sidecar"


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(whole, tmp_path / "sidecar")


def change(folder: Path, kind: str, **changes: Any) -> None:
    """Set keys of a head's entry; `...` takes one out."""
    manifest = json.loads((folder / MANIFEST).read_text())
    entry = manifest["heads"][kind] | changes
    manifest["heads"][kind] = {key: value for key, value in entry.items() if value is not ...}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def rewrite(folder: Path, kind: str, content: bytes) -> None:
    """Another file, of which the manifest says the truth."""
    (folder / FILES[kind]).write_bytes(content)
    made = HeadFile.of(kind, folder / FILES[kind], (), {}, MEASURED)
    change(folder, kind, bytes=made.bytes, crc32=made.crc32)


def test_what_is_attached_is_read(whole: Path) -> None:
    found = Sidecar.load(whole)
    assert list(found.heads) == list(KINDS)
    assert all(head.measured == MEASURED for head in found.heads.values())
    assert {path.name for path in whole.iterdir()} == {MANIFEST, "hvc.safetensors", *FILES.values()}
    assert found == sidecar(tiny.target())


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_the_sidecar_drafts_and_is_named(whole: Path, kind: str) -> None:
    for choice, mode in (("skip", f"skip(2,2)+hvc+{kind}"), ("auto", f"lookup+skip(2,2)+hvc+{kind}")):
        assert choose_drafter(tiny.target(), choice, sidecar=whole, head=kind).mode == mode


def test_a_head_serves_a_plan_of_ones_own_too(whole: Path, tmp_path: Path) -> None:
    target = Target(tiny.target().model, tmp_path / "model")
    shutil.copytree(whole, tmp_path / "model" / "skipspec")
    assert choose_drafter(target, "skip", plan="1,1", head="clusters").mode == "skip(1,1)+clusters"
    assert choose_drafter(target, "skip", plan="1,1", head="dense").mode == "skip(1,1)"


@pytest.mark.parametrize("kind", KINDS)
def test_another_models_head_is_refused(folder: Path, kind: str) -> None:
    other = tiny.target(seed=1)
    change(folder, kind, fingerprint=head_fingerprint(other))
    with pytest.raises(SkipSpecError) as error:
        choose_head(tiny.target(), kind, Sidecar.load(folder))
    for words in ("indexes another head than the model's (likeness", f"build-head --kind {kind} --model MODEL --out"):
        assert words in str(error.value)


def test_the_head_has_a_fingerprint_of_its_own_where_it_is_not_the_embedding() -> None:
    tied, untied = tiny.target(), tiny.target(tie_word_embeddings=False)
    assert head_fingerprint(tied) == sidecar(tied).base.fingerprint[:64]
    assert head_fingerprint(untied) != sidecar(untied).base.fingerprint[:64]


DAMAGES: dict[str, tuple[Callable[[Path, str], Any], str]] = {
    "missing": (lambda folder, kind: (folder / FILES[kind]).unlink(), "cannot be read"),
    "empty": (lambda folder, kind: (folder / FILES[kind]).write_bytes(b""), "has 0 bytes; need"),
    "cut short": (
        lambda folder, kind: os.truncate(folder / FILES[kind], (folder / FILES[kind]).stat().st_size - 1),
        "bytes; need",
    ),
    "one bit off": (lambda folder, kind: flip(folder / FILES[kind]), "wrong checksum"),
    "noise": (lambda folder, kind: rewrite(folder, kind, os.urandom(999)), "cannot be read"),
    "a page of zeros": (lambda folder, kind: rewrite(folder, kind, bytes(4096)), "cannot be read"),
}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused(folder: Path, kind: str, damage: str) -> None:
    spoil, message = DAMAGES[damage]
    spoil(folder, kind)
    with pytest.raises(SkipSpecError, match=message):
        choose_head(tiny.target(), kind, Sidecar.load(folder))


Tensors = dict[str, np.ndarray]
WRONG: dict[str, tuple[str, Callable[[Tensors], Tensors]]] = {
    "ids beyond the vocabulary": ("clusters", lambda t: t | {"members": t["members"] + 1}),
    "negative ids": ("clusters", lambda t: t | {"members": -t["members"]}),
    "ids that are no whole numbers": ("clusters", lambda t: t | {"members": t["members"].astype(np.float32)}),
    "clusters without a centre": ("clusters", lambda t: t | {"members": np.vstack([t["members"]] * 2)}),
    "narrow centres": ("clusters", lambda t: t | {"centres": t["centres"][:, :8].copy()}),
    "a lone number": ("clusters", lambda t: t | {"centres": np.ones((), np.float16)}),
    "NaN": ("clusters", lambda t: t | {"bias": t["bias"] * np.nan}),
    "no bias": ("clusters", lambda t: {name: value for name, value in t.items() if name != "bias"}),
    "something else": ("clusters", lambda t: t | {"more": np.ones(1)}),
    "rows beyond the vocabulary": ("subset", lambda t: {"rows": t["rows"] + tiny.VOCAB}),
    "no rows": ("subset", lambda t: {"rows": np.zeros(0, np.int32)}),
    "rows under another name": ("subset", lambda t: {"ids": t["rows"]}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_this_models_head_is_refused(folder: Path, name: str) -> None:
    kind, spoil = WRONG[name]
    save_file(spoil(load_file(folder / FILES[kind])), folder / "made")
    rewrite(folder, kind, (folder / "made").read_bytes())
    with pytest.raises(SkipSpecError, match="does not fit this model; need"):
        choose_head(tiny.target(), kind, Sidecar.load(folder))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("clusters", {"probes": 0}),
        ("clusters", {"probes": 9999}),
        ("clusters", {"probes": "3"}),
        ("clusters", {}),
        ("ann", {"candidates": 0, "scale": [1.0] * 64}),
        ("ann", {"candidates": 5}),
        ("ann", {"candidates": 5, "scale": [1.0] * 63}),
        ("ann", {"candidates": 5, "scale": [0.0] * 64}),
        ("ann", {"candidates": 5, "scale": "x"}),
        ("ann", {"candidates": 5, "scale": [[1.0]] * 63 + [1.0]}),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    change(folder, kind, settings=settings)
    with pytest.raises(SkipSpecError, match="does not fit this model; need"):
        choose_head(tiny.target(), kind, Sidecar.load(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"measured": {}},
        {"measured": asdict(replace(MEASURED, dense_seconds=0.0))},
        {"measured": asdict(replace(MEASURED, recall=float("nan")))},
        {"measured": asdict(replace(MEASURED, pass_seconds=(1.0, 0.0)))},
        {"measured": 3},
        {"bytes": ...},
        {"crc32": "x"},
        {"settings": 3},
        {"fingerprint": ["x"]},
        {"colour": 1},
    ],
    ids=str,
)
def test_a_manifest_that_says_something_else_of_a_head_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    change(folder, "clusters", **changes)
    with pytest.raises(SkipSpecError, match="cannot be read"):
        Sidecar.load(folder)


def test_an_index_of_another_size_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tiny.target(vocab_size=90)
    rewrite(folder, "ann", built("ann", other, tmp_path / "other").path.read_bytes())
    with pytest.raises(SkipSpecError, match=r"holds \(rows, width\) \(90, 72\); need \(96, 72\)"):
        choose_head(tiny.target(), "ann", Sidecar.load(folder))


def test_a_head_that_is_not_there_is_never_another_one(tmp_path: Path) -> None:
    sidecar(tiny.target()).save(tmp_path / "bare")
    for kind in KINDS:
        with pytest.raises(SkipSpecError, match=f"There is no {kind} head in the sidecar; it has dense. Build it"):
            choose_drafter(tiny.target(), "skip", sidecar=tmp_path / "bare", head=kind)
    assert choose_drafter(tiny.target(), "skip", sidecar=tmp_path / "bare").mode == "skip(2,2)+hvc"
    with pytest.raises(SkipSpecError, match="head='best'; need one of auto, dense, clusters, subset, ann"):
        check_choice("skip", head="best")
    with pytest.raises(SkipSpecError, match="--drafter none uses no --head"):
        check_choice("none", head="dense")
    assert HEADS == ("auto", "dense", "clusters", "subset", "ann")


def test_building_again_replaces_the_file(folder: Path, tmp_path: Path) -> None:
    again = replace(built("subset", tiny.target(), tmp_path / "again"), measured=replace(MEASURED, recall=0.5))
    attach(folder, again)
    found = Sidecar.load(folder)
    assert found.heads["subset"].measured.recall == 0.5
    assert set(found.heads) == set(KINDS)
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir())


@pytest.mark.parametrize("stopped_at", [1, 2, 3])
def test_at_every_moment_of_the_writing_the_sidecar_is_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: int
) -> None:
    """Each step is a rename; one that does not happen leaves a sidecar in which all that is listed is right."""
    again = built("clusters", tiny.target(), tmp_path / "again")
    calls, rename = [], os.replace

    def stop(*names: Any) -> None:
        calls.append(names)
        if len(calls) == stopped_at:
            raise OSError(28, "No space left on device")
        rename(*names)

    monkeypatch.setattr(artifacts.os, "replace", stop)
    with pytest.raises(SkipSpecError, match=r"Writing the clusters head into .* failed: No space left on device"):
        attach(folder, again)
    monkeypatch.undo()
    found = Sidecar.load(folder)
    assert set(found.heads) == ({*KINDS} if stopped_at == 1 else {"subset", "ann"})
    for kind in found.heads:
        choose_head(tiny.target(), kind, found)
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def measured(**changes: Any) -> dict[str, HeadFile]:
    head = HeadFile("clusters", (), {}, replace(MEASURED, **changes), 0, 0, Path())
    return {"clusters": head}


def test_the_rate_is_tokens_by_time_of_the_best_length() -> None:
    of = replace(MEASURED, recall=0.5, seconds=1.0, dense_seconds=3.0, layers_seconds=1.0, pass_seconds=(4.0, 5.0, 8.0))
    assert of.rate([0.8, 0.5, 0.5]) == pytest.approx(max(1.4 / (2 + 5), 1.5 / (4 + 8)))
    assert of.rate([0.8, 1.0], dense=True) == pytest.approx(max(1.8 / (4 + 5), 2.6 / (8 + 8)))


def test_auto_takes_the_head_that_was_measured_fastest_and_dense_is_among_them() -> None:
    accepted = [0.6, 0.6, 0.6]
    assert fastest({}, accepted) == "dense"
    assert fastest(measured(), accepted) == "clusters"
    assert fastest(measured(recall=0.2), accepted) == "dense"
    assert fastest(measured(seconds=2.0), accepted) == "dense"
    assert fastest(measured(pass_seconds=()), accepted) == "dense"
    better = measured(seconds=0.05)["clusters"]
    assert fastest(measured() | {"ann": replace(better, kind="ann")}, accepted) == "ann"
