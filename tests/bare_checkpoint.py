"""A random checkpoint of any config, for a second reader; bare: weights and config.json, no tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path
from mlx_lm.utils import quantize_model, save_config, save_model

from mlx_skipspec.models import get_model_classes

VOCAB = 96
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"type": "linear", "factor": 4.0}
MIXED = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]


def gain(name: str, width: int) -> tuple[float, float]:
    """Mean and deviation of a tensor's entries that make attention choosy and logits of the order of 1 to 10."""
    if "norm" in name:
        return 1.0, 0.25
    if name.endswith("bias"):
        return 0.0, 0.25
    if "embed_tokens" in name:
        return 0.0, 0.4
    return 0.0, (3.0 if "lm_head" in name else 1.2) / width**0.5


def write(folder: Path, config: dict[str, Any], seed: int = 0, **quantise: Any) -> Path:
    """A random fp32 checkpoint of this config; with `group_size`, `bits` and `mode`, quantised by mlx-lm."""
    model_class, args_class = get_model_classes(config)
    model = model_class(args_class.from_dict(config))
    mx.random.seed(seed)

    def drawn(name: str, w: mx.array) -> mx.array:
        mean, deviation = gain(name, w.shape[-1])
        return mean + deviation * mx.random.normal(w.shape)

    model.update(tree_map_with_path(drawn, model.parameters()))
    if quantise:
        model, config = quantize_model(model, config, **quantise)
    save_model(folder, model)
    save_config(dict(config), folder / "config.json")
    return folder
