"""What our blocks do not compute is refused by the name of the key that asks for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bare_checkpoint import LINEAR, LLAMA3, SIZES, YARN, write
from mlx_lm.utils import load_config

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.loading import load_target
from mlx_skipspec.models import FAMILIES, get_model_classes
from mlx_skipspec.models.args import NEEDED

LAYER_TYPES = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
LENGTH = "original_max_position_embeddings"
NO_LENGTH = {"max_position_embeddings": None}


def without(given: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in given.items() if k != key}


# What the message must name, and the keys that ask for it.
ALL_FAMILIES: list[tuple[str, dict[str, Any]]] = [
    *((key, {key: None}) for key in NEEDED),
    ("num_attention_heads", {"num_attention_heads": 0}),
    ("hidden_size", {"hidden_size": "64"}),
    ("hidden_act", {"hidden_act": "gelu"}),
    ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    ("partial_rotary_factor", {"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.5}}),
    ("partial_rotary_factor", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
    ("attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
    ("final_logit_softcapping", {"final_logit_softcapping": 30.0}),
    ("num_experts", {"num_experts": 8}),
    ("num_local_experts", {"num_local_experts": 8}),
    ("logits_scaling", {"logits_scaling": 8.0}),
    ("clip_qkv", {"clip_qkv": 8.0}),
    ("no_rope_layers", {"no_rope_layers": [1, 1, 0, 1]}),
    ("dynamic", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    ("dynamic", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    ("longrope", {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}),
    ("mrope", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}),
    ("truncate", {"rope_scaling": {**YARN, "truncate": False}}),
    ("truncate", {"rope_parameters": {**YARN, "truncate": False, "rope_theta": 10000.0}}),
    ("attention_factor", {"rope_scaling": {**YARN, "factor": 1.0, "attention_factor": 0.5}}),
    ("mscale", {"rope_scaling": {**LLAMA3, "mscale": 0.5}}),
    ("'factor'", {"rope_scaling": without(LINEAR, "factor")}),
    ("'factor'", {"rope_scaling": without(YARN, "factor")}),
    ("low_freq_factor", {"rope_scaling": without(LLAMA3, "low_freq_factor")}),
    (LENGTH, {"rope_scaling": without(YARN, LENGTH), **NO_LENGTH}),
    (LENGTH, {"rope_scaling": without(LLAMA3, LENGTH), **NO_LENGTH}),
    ("rope_parameters", {"rope_parameters": LAYER_TYPES}),
]
SLIDING = {"use_sliding_window": True, "sliding_window": 8}
WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("layer_types", {**SLIDING, "layer_types": ["full_attention"] * 3}),
    ("layer_types", {**SLIDING, "layer_types": ["full_attention"] * 5}),
    ("chunked_attention", {**SLIDING, "layer_types": ["full_attention"] * 3 + ["chunked_attention"]}),
    ("sliding_window", {**SLIDING, "sliding_window": None, "layer_types": ["sliding_attention"] * 4}),
    ("sliding_window", {**SLIDING, "sliding_window": 0, "layer_types": ["sliding_attention"] * 4}),
]


def ids(refusals: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [f"{named} by {'+'.join(config)}" for named, config in refusals]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("named", "config"), ALL_FAMILIES + WINDOWS, ids=ids(ALL_FAMILIES + WINDOWS))
def test_what_we_do_not_compute_is_refused_by_name(family, named, config):
    config = {"model_type": family, **SIZES, **config}
    with pytest.raises(SkipSpecError, match=named):
        get_model_classes(config)[1].from_dict(config)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key", NEEDED)
def test_a_missing_size_is_refused_by_name(family, key):
    config = without({"model_type": family, **SIZES}, key)
    with pytest.raises(SkipSpecError, match=key):
        get_model_classes(config)[1].from_dict(config)


@pytest.mark.parametrize("model_type", ["gemma2", "qwen3_moe", "", None])
def test_an_unknown_model_type_is_refused_by_name(model_type):
    with pytest.raises(SkipSpecError, match=repr(model_type)):
        get_model_classes({**SIZES, "model_type": model_type})


def test_a_config_without_a_model_type_is_refused():
    with pytest.raises(SkipSpecError, match="Model type"):
        get_model_classes(SIZES)


@pytest.mark.parametrize(
    ("named", "config"),
    [
        ("gemma2", {"model_type": "gemma2"}),
        ("hidden_act", {"hidden_act": "gelu"}),
        ("'su'", {"rope_scaling": {"type": "su"}}),
    ],
)
def test_loading_a_folder_refuses_what_its_config_asks_for(named, config, tmp_path):
    write(tmp_path, {"model_type": "llama", **SIZES})
    (tmp_path / "config.json").write_text(json.dumps(load_config(tmp_path) | config))
    with pytest.raises(SkipSpecError, match=named):
        load_target(tmp_path, "checkpoint")


@pytest.mark.parametrize("family", FAMILIES)
def test_neutral_values_of_what_we_do_not_compute_are_accepted(family):
    neutral = {
        "hidden_act": "silu",
        "partial_rotary_factor": 1.0,
        "num_experts": 0,
        "final_logit_softcapping": None,
        "rope_scaling": {**YARN, "truncate": True, "partial_rotary_factor": 1.0, "attention_factor": None},
    }
    config = {"model_type": family, **SIZES, **neutral}
    assert get_model_classes(config)[1].from_dict(config).rope_scaling == YARN
