"""Qwen2: Llama with biases on q, k and v; with `use_sliding_window` the layers from `max_window_layers` on slide."""

from __future__ import annotations

from typing import Any

from mlx_skipspec.models.args import ModelArgs, flat_rope, read, windows_by_type


def args(config: dict[str, Any]) -> ModelArgs:
    config = flat_rope(config)
    return read(config, kv_heads=32, qkv_bias=True, windows=windows(config))


def windows(config: dict[str, Any]) -> tuple[int | None, ...]:
    """Rows each layer of a Qwen2 or Qwen3 sees; without `use_sliding_window` the window counts for nothing."""
    if not config.get("use_sliding_window", False):
        return (None,) * config["num_hidden_layers"]
    layer_types = config.get("layer_types")
    if layer_types is None:
        first = config.get("max_window_layers", 28)
        layer_types = [
            "sliding_attention" if config.get("sliding_window") is not None and i >= first else "full_attention"
            for i in range(config["num_hidden_layers"])
        ]
    return windows_by_type(config, layer_types)
