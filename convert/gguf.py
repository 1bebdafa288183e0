"""A GGUF file of a Llama as an MLX model folder, number for number.

GGUF's Q4_0, Q4_1 and Q8_0 blocks are 32 integers q with `w = scale * q + bias`, which is MLX's affine quantisation at
group size 32: nothing is quantised again. Scales and biases are widened to float32 and the model runs in it, so that
both sides dequantise to the same numbers (bit for bit; only a zero in a Q4_0 block may lose its sign). MLX on a CPU is
also 25 times faster in float32 than in float16.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from mlx_skipspec.errors import SkipSpecError

GROUP_SIZE = 32
COMMON_BITS = 4  # matrices with other bits (the 8-bit embeddings) are named one by one in config.json

MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # llama.cpp's token types that are not plain text


class Metadata(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        raise SkipSpecError(f"The GGUF has no {key!r}; need a Llama written by llama.cpp: convert it again there.")


def gguf_to_mlx(gguf: Path, out: Path) -> None:
    """Write the folder that `mlx_lm.load` opens. config.json comes last: a folder without it was never finished."""
    metadata, tensors = _read(gguf)
    _refuse_what_would_change_the_model(gguf.name, metadata, tensors)
    weights = _weights(metadata, tensors)
    ids = _special_ids(metadata)
    documents = {
        "tokenizer.json": _tokenizer(metadata),
        "tokenizer_config.json": _tokenizer_config(metadata, ids),
        "generation_config.json": {**ids, "do_sample": False},
        "config.json": {**_config(metadata, weights), **ids, "quantization": _quantization(weights)},
    }
    out.mkdir(parents=True, exist_ok=True)
    try:
        mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    except RuntimeError as error:  # how MLX reports a full disk
        raise OSError(f"{out}: {error}") from error
    (out / "README.md").write_text(_card(gguf.name, metadata), encoding="utf-8")
    if template := metadata.get("tokenizer.chat_template"):
        (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    for name, document in documents.items():
        (out / name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(gguf: Path) -> tuple[Metadata, dict[str, mx.array]]:
    try:
        loaded = mx.load(str(gguf), format="gguf", return_metadata=True)
    except (RuntimeError, OSError) as error:
        raise SkipSpecError(f"{gguf} is not a whole GGUF file ({error}); need all of it: fetch it again.") from error
    tensors, raw = cast("tuple[dict[str, mx.array], dict[str, Any]]", loaded)
    return Metadata({k: v.tolist() if isinstance(v, mx.array) else v for k, v in raw.items()}), tensors


def _refuse_what_would_change_the_model(name: str, metadata: Metadata, tensors: dict[str, mx.array]) -> None:
    instead = "use the model's safetensors or MLX folder instead."
    for key, needed in {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",  # llama.cpp's name for byte-level BPE
        "tokenizer.ggml.pre": "smollm",
    }.items():
        if metadata[key] != needed:
            raise SkipSpecError(f"{name} has {key} {metadata[key]!r}; need {needed!r}: {instead}")
    if metadata.get("tokenizer.ggml.add_bos_token"):
        raise SkipSpecError(f"{name} puts BOS before every text; need a tokenizer that adds nothing: {instead}")
    if metadata.get("llama.rope.scaling.type", "none") != "none":
        raise SkipSpecError(f"{name} scales its RoPE; need plain RoPE: {instead}")
    for tensor, array in sorted(tensors.items()):
        stem, _, kind = tensor.rpartition(".")
        if kind not in ("weight", "scales", "biases") or _module(stem) is None:
            raise SkipSpecError(f"{name} has a tensor {tensor!r}; need a plain Llama without it: {instead}")
        # MLX rounds the block formats it cannot hold to float16 and leaves them without scales.
        if kind == "weight" and array.ndim == 2 and f"{stem}.scales" not in tensors:
            raise SkipSpecError(f"{name} has {tensor!r} in another format; need Q4_0, Q4_1 or Q8_0: {instead}")


def _module(stem: str) -> str | None:
    if in_layer := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
        module = LAYER_MODULES.get(in_layer[2])
        return module and f"model.layers.{in_layer[1]}.{module}"
    return MODULES.get(stem)


def _weights(metadata: Metadata, tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    heads = {"attn_q": metadata["llama.attention.head_count"]}
    heads["attn_k"] = metadata.get("llama.attention.head_count_kv", heads["attn_q"])
    weights = {}
    for tensor, array in sorted(tensors.items()):
        stem, _, kind = tensor.rpartition(".")
        if array.dtype == mx.float16:
            array = array.astype(mx.float32)
        if n_heads := heads.get(stem.rpartition(".")[2]):
            array = _halves_from_pairs(array, n_heads)
        weights[f"{_module(stem)}.{kind}"] = array
    return weights


def _halves_from_pairs(rows: mx.array, n_heads: int) -> mx.array:  # (n_heads * head_dim, any) -> same
    """llama.cpp rotates rows 2i and 2i+1 of a head, MLX rows i and i + head_dim/2: put each row back in its half.

    Quantised groups run along a row, so packed integers, scales and biases move alike.
    """
    return rows.reshape(n_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _quantization(weights: dict[str, mx.array]) -> dict[str, Any]:
    quantization: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": COMMON_BITS}
    for name, scales in weights.items():
        module, _, kind = name.rpartition(".")
        # A 32-bit word holds 32 / bits integers and one scale serves 32 of them: words per scale = bits.
        if kind == "scales" and (bits := weights[f"{module}.weight"].shape[1] // scales.shape[1]) != COMMON_BITS:
            quantization[module] = {"group_size": GROUP_SIZE, "bits": bits}
    return quantization


def _config(metadata: Metadata, weights: dict[str, mx.array]) -> dict[str, Any]:
    hidden_size, n_heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": n_heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", n_heads),
        "head_dim": metadata.get("llama.attention.key_length", hidden_size // n_heads),
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "max_position_embeddings": metadata["llama.context_length"],
        # Stored as float32; six digits bring back the decimal that was meant: 9.99999975e-06 is 1e-05.
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": metadata.get("llama.rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in weights,
    }


def _special_ids(metadata: Metadata) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {name: token for name, token in ids.items() if token is not None}


def _tokenizer(metadata: Metadata) -> dict[str, Any]:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": token, **flags, "special": kind == CONTROL}
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        ],
        # What the pre-tokenizer name 'smollm' stands for: every digit by itself, then GPT-2's split.
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens) if types[i] != UNUSED},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(metadata: Metadata, ids: dict[str, int]) -> dict[str, Any]:
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": metadata["llama.context_length"]}
    special = {name.removesuffix("_id"): metadata["tokenizer.ggml.tokens"][i] for name, i in ids.items()}
    return {**named, "clean_up_tokenization_spaces": False, **special}


def _card(source: str, metadata: Metadata) -> str:
    licence = metadata.get("general.license", "other")
    return (
        f"---\nlibrary_name: mlx\nlicense: {licence}\n---\n\n# {Path(source).stem}\n\n"
        f"The weights, tokenizer and chat template of `{source}` as an MLX model folder, by mlx-skipspec.\n"
        "Nothing was quantised again: both dequantise to the same float32 numbers.\n"
    )
