"""The model that is spoilt, and what spoils it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint
import mlx.core as mx

DEPTH, HIDDEN, VOCAB = 6, 64, len(checkpoint.byte_level())
SIZES = {"num_hidden_layers": DEPTH, "hidden_size": HIDDEN, "max_position_embeddings": 1024}
Refuse = Callable[..., str]


def change(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; `...` takes one out."""
    document = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))


def rewrite(folder: Path, **changes: mx.array | None) -> None:
    """Exchange tensors of a model; None takes one out."""
    weights = {**mx.load(str(folder / "model.safetensors")), **changes}
    mx.save_safetensors(str(folder / "model.safetensors"), {n: w for n, w in weights.items() if w is not None})
