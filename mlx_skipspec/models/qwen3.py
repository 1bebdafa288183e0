"""Qwen3: heads of their own size, RMS norms on queries and keys, biases by flag."""

from __future__ import annotations

from typing import Any

from mlx_skipspec.models.args import ModelArgs, read
from mlx_skipspec.models.qwen2 import windows


def args(config: dict[str, Any]) -> ModelArgs:
    bias = bool(config.get("attention_bias", False))
    return read(config, kv_heads=32, head_dim=128, qk_norm=True, qkv_bias=bias, o_bias=bias, windows=windows(config))
