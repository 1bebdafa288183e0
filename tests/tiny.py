"""Random models small enough to run thousands of tokens, one for each family."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from mlx_skipspec.models import get_model_classes
from mlx_skipspec.target import Target

DEPTH, VOCAB = 6, 96
FAMILIES = ("llama", "mistral", "qwen3")
CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "sliding_window": None,
}


def config(family: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": family, **CONFIG, **changes}


def target(family: str = "llama", seed: int | None = None, **changes: Any) -> Target:
    """A random model whose text neither loops at once nor is noise."""
    settings = config(family, **changes)
    model_class, args_class = get_model_classes(settings)
    mx.random.seed(FAMILIES.index(family) if seed is None else seed)
    model = model_class(args_class.from_dict(settings))
    model.update(tree_map(lambda w: w if w.ndim == 1 else w * 2.5, model.parameters()))
    mx.eval(model.parameters())
    return Target(model)


def prompt(seed: int, length: int = 24) -> list[int]:
    """Ids with a repetition in them, so that looking up has something to find."""
    ids = mx.random.randint(3, VOCAB, (length // 2,), key=mx.random.key(seed)).tolist()
    return ids + ids[: length - len(ids)]
