"""Llama: biases by flag, full attention unless `layer_types` names sliding layers."""

from __future__ import annotations

from typing import Any

from mlx_skipspec.models.args import ModelArgs, read, windows_by_type


def args(config: dict[str, Any]) -> ModelArgs:
    bias = bool(config.get("attention_bias", False))
    return read(
        config,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        windows=windows_by_type(config, config.get("layer_types")),
    )
