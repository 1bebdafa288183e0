"""Where mlx-lm computes a model right, our blocks compute the very same bits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from bare_checkpoint import LINEAR, LLAMA3, MIXED, SIZES, VOCAB, YARN, write
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from mlx_lm.utils import load_model

from mlx_skipspec.loading import load_target

PLAIN: dict[str, Any] = {**SIZES, "rope_theta": 10000.0, "tie_word_embeddings": False}
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "llama with as many KV heads as heads": {"num_key_value_heads": None},
    "llama with one KV head": {"num_key_value_heads": 1},
    "llama with large heads": {"head_dim": 32},
    "llama with attention_bias": {"attention_bias": True},
    "llama with mlp_bias": {"mlp_bias": True},
    "llama with another theta": {"rope_theta": 500000.0},
    "llama with linear RoPE": {"rope_scaling": LINEAR},
    "llama with llama3 RoPE": {"rope_scaling": LLAMA3},
    "llama with yarn RoPE": {"rope_scaling": YARN},
    "llama with yarn RoPE and mscales": {"rope_scaling": {**YARN, "mscale": 1.5, "mscale_all_dim": 0.5}},
    "llama with yarn RoPE and betas": {"rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 2}},
    "mistral": {"sliding_window": None},
    "mistral with large heads": {"sliding_window": None, "head_dim": 32},
    "qwen2": {},
    "qwen2 tied": {"tie_word_embeddings": True},
    "qwen2 with a window it does not use": {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 2},
    "qwen2 with yarn RoPE": {"rope_scaling": YARN},
    "qwen3": {"head_dim": 32},
    "qwen3 tied": {"head_dim": 16, "tie_word_embeddings": True},
    "qwen3 with linear RoPE": {"head_dim": 16, "rope_scaling": LINEAR},
    "qwen3 with llama3 RoPE": {"head_dim": 16, "rope_scaling": LLAMA3},
    "qwen3 with nested yarn RoPE": {
        "head_dim": 32,
        "rope_theta": None,
        "rope_parameters": {**YARN, "rope_theta": 1000000.0},
    },
}
MODES = {
    "4 bits": {"group_size": 64, "bits": 4},
    "8 bits": {"group_size": 32, "bits": 8},
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
}
QUANTISED = {
    f"{name} in {mode}": (config, MODES[mode])
    for name, config in CASES.items()
    if name in ("llama tied", "mistral", "qwen2", "qwen3")
    for mode in MODES
}
WINDOWED = {"sliding_window": 8, "layer_types": MIXED}
PROMPT, STEPS = 20, 12


@pytest.fixture(
    scope="module",
    params=[*((name, config, {}) for name, config in CASES.items()), *((n, *both) for n, both in QUANTISED.items())],
    ids=lambda param: param[0],
)
def pair(request, tmp_path_factory):
    """Our target and mlx-lm's model, from one folder."""
    name, config, quantise = request.param
    config = {"model_type": name.split()[0], **PLAIN, **config}
    return both(write(tmp_path_factory.mktemp("model"), config, **quantise))


@pytest.fixture(scope="module")
def windowed_pair(tmp_path_factory):
    return both(write(tmp_path_factory.mktemp("model"), {"model_type": "llama", **PLAIN, **WINDOWED}))


def both(folder):
    return load_target(folder, "checkpoint"), load_model(folder)[0]


def ids(length: int) -> mx.array:
    return mx.random.randint(0, VOCAB, (length,), key=mx.random.key(7))


def one_block(target, model) -> tuple[mx.array, mx.array]:
    tokens = ids(PROMPT + STEPS)
    return target(tokens, target.make_kv())[0], model(tokens[None], cache=make_prompt_cache(model))


def prompt_then_steps(target, model, cache=None) -> tuple[mx.array, mx.array]:
    kv, cache, tokens = target.make_kv(), cache or make_prompt_cache(model), ids(PROMPT + STEPS)
    blocks = [tokens[:PROMPT], *(tokens[i : i + 1] for i in range(PROMPT, PROMPT + STEPS))]
    ours = [target(block, kv)[0] for block in blocks]
    theirs = [model(block[None], cache=cache) for block in blocks]
    return mx.concatenate(ours, axis=1), mx.concatenate(theirs, axis=1)


def test_a_block_gives_the_logits_of_mlx_lm_to_the_last_bit(pair):
    ours, theirs = one_block(*pair)
    assert ours.dtype == theirs.dtype == mx.float32
    assert 1 < mx.abs(theirs).max().item() < 100
    assert mx.array_equal(ours, theirs)


def test_token_after_token_gives_the_logits_of_mlx_lm_to_the_last_bit(pair):
    assert mx.array_equal(*prompt_then_steps(*pair))


def test_a_block_through_sliding_layers_gives_the_logits_of_mlx_lm_to_the_last_bit(windowed_pair):
    assert mx.array_equal(*one_block(*windowed_pair))


class InOrder(RotatingKVCache):
    """mlx-lm's window that hands its rows out from oldest to newest, as ours does, not as the ring holds them."""

    def update_and_fetch(self, keys, values):
        return self._update_concat(keys, values)


def test_token_after_token_through_sliding_layers_only_the_order_of_the_summands_differs_from_mlx_lm(windowed_pair):
    target, model = windowed_pair
    in_order = [InOrder(8) if isinstance(cache, RotatingKVCache) else cache for cache in make_prompt_cache(model)]
    assert mx.array_equal(*prompt_then_steps(target, model, in_order))
    ours, theirs = prompt_then_steps(target, model)
    assert mx.abs(ours - theirs).max() < 1e-4


def test_blocks_through_sliding_layers_give_the_logits_of_mlx_lm_long_after_the_first_rows_are_forgotten(windowed_pair):
    target, model = windowed_pair
    kv, cache, tokens = target.make_kv(), make_prompt_cache(model), ids(600)
    for block in tokens.split(20):
        assert mx.array_equal(target(block, kv)[0], model(block[None], cache=cache))
    assert kv[1].forgotten > 0
