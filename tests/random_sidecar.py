"""Sidecars with a random bridge: for a model at hand, and for a checkpoint on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from drafters import random_bridge
from mlx.utils import tree_flatten

from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.loading import base_of, load_target
from mlx_skipspec.target import Target

SIZE = tiny.CONFIG["hidden_size"]


def tensors(size: int = SIZE) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in tree_flatten(random_bridge(size).parameters())}


def sidecar(target: Target, **changes: Any) -> Sidecar:
    made = Sidecar(
        base=base_of(target, "tiny"),
        head=2,
        tail=2,
        tensors=tensors(),
        made_by={"method": "chance", "tokens": 7, "text": ["a.txt"]},
        acceptance_by_position=(0.5, 0.25, None),
    )
    return replace(made, **changes)


def bridge_for(source: Path, folder: Path) -> Path:
    target = load_target(source)
    tensors = {name: np.array(w) for name, w in tree_flatten(random_bridge(target.hidden_size).parameters())}
    Sidecar(base_of(target, "tiny"), 1, 2, tensors, acceptance_by_position=(0.5,)).save(folder)
    return folder
