"""Qwen2: Llama with biases on q, k and v; with `use_sliding_window` the layers from `max_window_layers` on slide."""

from __future__ import annotations

from typing import Any

from mlx_skipspec.models.args import ModelArgs, read, windows_by_type

# What transformers' Qwen2Config and Qwen3Config take when a key is absent.
WINDOW_DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}


def args(config: dict[str, Any]) -> ModelArgs:
    return read(config, kv_heads=32, qkv_bias=True, windows=windows(config))


def windows(config: dict[str, Any]) -> tuple[int | None, ...]:
    """Rows each layer of a Qwen2 or Qwen3 sees; without `use_sliding_window` the window counts for nothing."""
    config = {**WINDOW_DEFAULTS, **config}
    depth = config["num_hidden_layers"]
    if not config["use_sliding_window"]:
        return (None,) * depth
    full = depth if config["sliding_window"] is None else min(config["max_window_layers"], depth)
    by_depth = ["full_attention"] * full + ["sliding_attention"] * (depth - full)
    return windows_by_type(config, config.get("layer_types") or by_depth)
