"""Mistral: Llama without biases; `sliding_window` is the window of every layer (v0.1) unless it is null."""

from __future__ import annotations

from typing import Any

from mlx_skipspec.models.args import ModelArgs, read, windows_by_type

DEFAULT_WINDOW = 4096  # what transformers' MistralConfig takes when the key is absent


def args(config: dict[str, Any]) -> ModelArgs:
    config = {"sliding_window": DEFAULT_WINDOW, **config}
    layer_types = config.get("layer_types")
    if layer_types is None and config["sliding_window"] is not None:
        layer_types = ["sliding_attention"] * config["num_hidden_layers"]
    return read(config, kv_heads=8, windows=windows_by_type(config, layer_types))
