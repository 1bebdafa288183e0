"""A config.json that is none, or that asks for what the folder does not have or we do not compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spoil import DEPTH, VOCAB, Refuse, change

NO_OBJECTS = (b"[]", b"3", b"null", b"\xff\xfe", b"[" * 100_000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("config.json", text) for text in (b"", b"{", *NO_OBJECTS)),
        *(("generation_config.json", text) for text in NO_OBJECTS),  # mlx-lm goes on without one it cannot parse
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_config_that_is_no_json_object(refuse: Refuse, copy: Path, name: str, text: bytes) -> None:
    (copy / name).write_bytes(text)
    assert "copy it again" in refuse("generate", "-p", "hi", "--model", copy)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gemma2"},
        {"model_type": ...},
        {"model_type": ["llama"]},
        {"hidden_act": "gelu"},
        {"hidden_size": 32},
        {"hidden_size": "64"},
        {"hidden_size": True},
        {"hidden_size": 10**12},
        {"hidden_size": ...},
        {"num_hidden_layers": DEPTH + 1},
        {"num_hidden_layers": DEPTH - 1},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 3},
        {"num_key_value_heads": "2"},
        {"head_dim": -32},
        {"vocab_size": VOCAB + 1},
        {"max_position_embeddings": "x"},
        {"max_position_embeddings": -1},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": "x"},
        {"attention_bias": True},
        {"rms_norm_eps": None},
        {"rms_norm_eps": float("nan")},
        {"rope_theta": -1},
        {"rope_theta": "x"},
        {"rope_scaling": "x"},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": "linear", "factor": -2}},
        {"rope_scaling": {"type": "yarn", "factor": "x"}},
        {"rope_parameters": 3},
        {"layer_types": ["full_attention"]},
        {"layer_types": 3},
        {"layer_types": ["sliding_attention"] * DEPTH, "sliding_window": 0},
        {"quantization": 3},
        {"quantization": {"bits": 4}},
        {"quantization_config": {"quant_method": "gptq"}},
        {"eos_token_id": "x"},
    ],
    ids=str,
)
def test_a_config_that_asks_for_what_is_not_there(
    refuse: Refuse, no_weights: None, copy: Path, changes: dict[str, Any]
) -> None:
    change(copy / "config.json", **changes)
    (copy / "generation_config.json").unlink()
    refuse("generate", "-p", "hi", "--model", copy)
