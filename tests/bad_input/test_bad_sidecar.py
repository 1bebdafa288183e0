"""A sidecar that is missing, damaged or another model's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from spoil import DEPTH, HIDDEN, SIZES, VOCAB, Refuse, change


def test_a_sidecar_that_is_not_there(
    refuse: Refuse, no_model: None, model: Path, sidecar: Path, tmp_path: Path
) -> None:
    for folder in (tmp_path / "nowhere", tmp_path, sidecar / "skipspec.json", ""):
        assert "need a sidecar folder" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", folder)


@pytest.mark.parametrize(
    "manifest", [b"", b"{", b"[]", b"3", b"null", b"\xff", b"[" * 100_000, b"{}", b'{"schema": 1}', b'{"schema": 2}']
)
def test_a_sidecar_whose_manifest_is_none(
    refuse: Refuse, no_model: None, model: Path, bridge: Path, manifest: bytes
) -> None:
    (bridge / "skipspec.json").write_bytes(manifest)
    assert "sidecar" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"base": 3},
        {"base": {}},
        {"head": "1"},
        {"head": 1.5},
        {"head": None},
        {"head": ...},
        {"head": -1},
        {"head": DEPTH},
        {"kind": "mystery"},
        {"acceptance_by_position": 3},
        {"unheard_of": 3},
    ],
    ids=str,
)
def test_a_sidecar_whose_manifest_says_something_else(
    refuse: Refuse, no_weights: None, model: Path, bridge: Path, changes: dict[str, Any]
) -> None:
    change(bridge / "skipspec.json", **changes)
    refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)


@pytest.mark.parametrize("fingerprint", [3, [], ["x"], [[1]], [float("nan")] * 256])
def test_a_sidecar_whose_fingerprint_is_none(
    refuse: Refuse, no_weights: None, model: Path, bridge: Path, fingerprint: Any
) -> None:
    base = json.loads((bridge / "skipspec.json").read_text())["base"]
    change(bridge / "skipspec.json", base=base | {"fingerprint": fingerprint})
    assert "sidecar" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)


@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.999])
def test_a_sidecar_cut_short(refuse: Refuse, no_model: None, model: Path, bridge: Path, kept: float) -> None:
    file = bridge / "hvc.safetensors"
    file.write_bytes(file.read_bytes()[: kept if isinstance(kept, int) else int(file.stat().st_size * kept)])
    assert "copy or fit it again" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)
    file.unlink()
    assert "copy or fit it again" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)


SPOILT: dict[str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]] = {
    "NaN": lambda tensors: tensors | {"proj.weight": tensors["proj.weight"] * np.float16("nan")},
    "infinite": lambda tensors: tensors | {"ln_gap.bias": tensors["ln_gap.bias"] + np.float16("inf")},
    "half as wide": lambda tensors: tensors | {"proj.weight": tensors["proj.weight"][:, :HIDDEN].copy()},
    "of a narrower model": lambda tensors: {
        name: np.ones([size // 2 for size in tensor.shape], np.float16) for name, tensor in tensors.items()
    },
    "a number": lambda tensors: tensors | {"ln_gap.weight": np.array(1, np.float16)},
    "missing": lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "ln_gap.weight"},
    "one too many": lambda tensors: tensors | {"stray": np.ones(3, np.float16)},
    "none at all": lambda tensors: {},
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_sidecar_whose_tensors_cannot_be_the_bridges(
    refuse: Refuse, no_weights: None, model: Path, bridge: Path, kind: str
) -> None:
    save_file(SPOILT[kind](load_file(bridge / "hvc.safetensors")), bridge / "hvc.safetensors")
    said = refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)
    assert "The bridge" in said
    assert "mlx-skipspec fit" in said


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"seed": 7}, "other weights"),
        ({"num_hidden_layers": DEPTH + 1}, f"{DEPTH + 1} layers"),
        ({"hidden_size": 32}, "hidden 32"),
        ({"vocab_size": VOCAB + 8}, f"vocabulary {VOCAB + 8}"),
    ],
)
def test_a_sidecar_of_another_model(
    refuse: Refuse, no_weights: None, sidecar: Path, tmp_path: Path, other: dict[str, int], difference: str
) -> None:
    folder = checkpoint.write(tmp_path / "other", **SIZES | other)
    for drafter in ("auto", "skip"):
        said = refuse("generate", "-p", "hi", "--model", folder, "--sidecar", sidecar, "--drafter", drafter)
        assert difference in said
        assert "mlx-skipspec fit" in said
    assert difference in refuse("convert", "--hf-path", folder, "--out", tmp_path / "out", "--hvc", sidecar)
    shutil.copytree(sidecar, folder / "skipspec")
    assert difference in refuse("generate", "-p", "hi", "--model", folder)
