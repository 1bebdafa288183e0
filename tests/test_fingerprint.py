"""A sidecar belongs to one model, cast or quantised as it may be, and to no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny
from mlx.utils import tree_map
from random_sidecar import sidecar
from safetensors.numpy import load_file

from mlx_skipspec.base_model import Base
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.fingerprint import SAME
from mlx_skipspec.loading import base_of, load_target
from mlx_skipspec.target import Target

CAST: dict[str, Callable[[Target], None]] = {
    "bf16": lambda target: cast(target, mx.bfloat16),
    "fp16": lambda target: cast(target, mx.float16),
    "8 bits": lambda target: nn.quantize(target.model, 64, 8, class_predicate=fits(64)),
    "4 bits": lambda target: nn.quantize(target.model, 32, 4),
    "mxfp4": lambda target: nn.quantize(target.model, 32, 4, mode="mxfp4"),
    "bf16, then 4 bits": lambda target: (cast(target, mx.bfloat16), nn.quantize(target.model, 32, 4)),
}


def fits(group: int) -> Callable[[str, Any], bool]:
    return lambda path, module: hasattr(module, "to_quantized") and module.weight.shape[-1] % group == 0


def cast(target: Target, dtype: mx.Dtype) -> None:
    target.model.update(tree_map(lambda w: w.astype(dtype), target.model.parameters()))


@pytest.mark.parametrize("kind", CAST)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_fingerprint_survives_casting_and_quantising(family: str, kind: str) -> None:
    base, changed = base_of(tiny.target(family)), tiny.target(family)
    CAST[kind](changed)
    found = base_of(changed)
    assert found.fingerprint != base.fingerprint
    assert 0.95 < base.likeness(found) <= 1.0 + 1e-6
    base.check(found, "sidecar")


def test_another_models_fingerprint_is_nowhere_near() -> None:
    base = base_of(tiny.target(seed=0))
    likenesses = [base.likeness(base_of(tiny.target(seed=seed))) for seed in range(1, 9)]
    assert max(map(abs, likenesses)) < SAME / 2


def test_another_model_of_equal_size_is_refused_with_what_was_found_and_what_to_do() -> None:
    made = sidecar(tiny.target(seed=0))
    with pytest.raises(SkipSpecError) as error:
        made.base.check(base_of(tiny.target(seed=1)), "my-sidecar")
    message = str(error.value)
    assert message.startswith("The sidecar my-sidecar belongs to tiny (6 layers, hidden 64, vocabulary 96)")
    assert "other weights (likeness" in message
    assert "mlx-skipspec fit --model MODEL --out DIR" in message


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 7}, {"hidden_size": 128}, {"vocab_size": 97}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_model_of_another_size_is_refused_by_its_sizes(changes: dict[str, int]) -> None:
    sizes = {"num_hidden_layers": 6, "hidden_size": 64, "vocab_size": 96} | changes
    found = "has {num_hidden_layers} layers, hidden {hidden_size}, vocabulary {vocab_size};".format(**sizes)
    with pytest.raises(SkipSpecError, match=found):
        sidecar(tiny.target()).base.check(base_of(tiny.target(**changes)), "sidecar")


@pytest.mark.parametrize("tied", [True, False])
def test_a_reader_without_mlx_finds_the_same_fingerprint_in_the_checkpoint(tmp_path: Path, tied: bool) -> None:
    folder = checkpoint.write(tmp_path / "model", tie_word_embeddings=tied)
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = Base.of(
        config["num_hidden_layers"],
        config["hidden_size"],
        config["vocab_size"],
        lambda name, rows: weights[name][rows],
        "tiny",
    )
    assert found == base_of(load_target(folder), "tiny")


def test_the_fingerprint_reads_few_numbers_of_every_matrix() -> None:
    asked: list[tuple[str, int]] = []

    def rows_of(name: str, rows: list[int]) -> np.ndarray:
        asked.append((name, len(rows)))
        return np.ones((len(rows), 64))

    Base.of(30, 64, 1000, rows_of)
    layers = [f"model.layers.{i}.mlp.down_proj.weight" for i in (0, 15, 29)]
    assert asked == [(name, 64) for name in ["model.embed_tokens.weight", *layers]]
