"""A checkpoint's config, read the way transformers reads it, with nothing that matters ignored in silence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mlx_skipspec.errors import SkipSpecError

# Config keys that change what a model computes and that these families do not have: anything but the neutral values
# listed is refused by name.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (None, 1, 1.0),
    "attn_logit_softcapping": (None, 0),
    "final_logit_softcapping": (None, 0),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "embedding_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "attention_multiplier": (None,),
    "query_pre_attn_scalar": (None,),
    "clip_qkv": (None,),
    "use_qk_norm": (None, False),
    "qk_layernorm": (None, False),
    "no_rope_layers": (None, []),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "parallel_residual": (None, False),
    "is_decoder": (None, True, False),
    "rope_interleaved": (None, False),
    "add_cross_attention": (None, False),
}
NEEDED = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "vocab_size")
OPTIONAL = ("num_key_value_heads", "head_dim", "max_position_embeddings")  # 0 and null stand for the default
ROPE_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"},
}
ROPE_REQUIRED = {
    "linear": {"factor"},
    "llama3": ROPE_KEYS["llama3"],
    "yarn": {"factor", "original_max_position_embeddings"},
}


@dataclass(frozen=True)
class ModelArgs:
    """What a decoder of these families is made of, whichever config style said so."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    rope_traditional: bool
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]  # rows each layer's attention sees; None: all


def checked(config: dict[str, Any]) -> dict[str, Any]:
    """The config with its RoPE written flat, once nothing in it asks for what these blocks do not compute.

    Raises:
        SkipSpecError: a needed key is missing, or a value asks for something else; the message names the key.
    """
    config = flat_rope(config)
    for key, neutral in NEUTRAL.items():
        if key in config and config[key] not in neutral:
            raise SkipSpecError(
                f"config.json says {key}={config[key]!r}, which our {config['model_type']} does not compute "
                f"(need {' or '.join(map(repr, neutral))}); use mlx-lm for this model."
            )
    for key in (*NEEDED, *(key for key in OPTIONAL if config.get(key))):
        if type(config.get(key)) is not int or not 0 < config[key] < 2**31:
            raise SkipSpecError(f"config.json says {key}={config.get(key)!r}; need a positive whole number.")
    for key in ("rope_theta", "rms_norm_eps"):
        _need_positive(key, config.get(key, 1.0))
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    if kv_heads and heads % kv_heads:
        raise SkipSpecError(f"config.json says num_key_value_heads={kv_heads}; need a divisor of its {heads} heads.")
    return config


def _need_positive(key: str, value: Any) -> None:
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise SkipSpecError(f"config.json says {key}={value!r}; need a positive number.")


def read(
    config: dict[str, Any],
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    windows: tuple[int | None, ...],
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> ModelArgs:
    """Read what all families share from a checked config; a family passes its own defaults and what only it has.

    Raises:
        SkipSpecError: the RoPE is not one these blocks compute.
    """
    heads = config["num_attention_heads"]
    theta, scaling = _rope(config)
    return ModelArgs(
        model_type=config["model_type"],
        **{key: config[key] for key in NEEDED},
        num_key_value_heads=config.get("num_key_value_heads", kv_heads) or heads,
        head_dim=config.get("head_dim") or head_dim or config["hidden_size"] // heads,
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        rope_traditional=bool(config.get("rope_traditional", False)),
        max_position_embeddings=config.get("max_position_embeddings") or 2**31 - 1,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        windows=windows,
    )


def windows_by_type(config: dict[str, Any], layer_types: list[str] | None) -> tuple[int | None, ...]:
    """Turn `layer_types` and `sliding_window` into the rows each layer sees.

    Raises:
        SkipSpecError: another number of types than layers, an unknown type, or a sliding layer without a window.
    """
    depth, window = config["num_hidden_layers"], config.get("sliding_window")
    if layer_types is None:
        return (None,) * depth
    unknown = sorted(set(layer_types) - {"full_attention", "sliding_attention"})
    if len(layer_types) != depth or unknown:
        raise SkipSpecError(
            f"config.json has layer_types of {len(layer_types)} layers{f' with {unknown[0]!r}' if unknown else ''}; "
            f"need {depth} of 'full_attention' or 'sliding_attention'."
        )
    if "sliding_attention" in layer_types and not (isinstance(window, int) and window > 0):
        raise SkipSpecError(f"config.json has sliding layers but sliding_window={window!r}; need a positive number.")
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


def flat_rope(config: dict[str, Any]) -> dict[str, Any]:
    """The same config with RoPE written the way mlx-lm reads it: `rope_theta` and `rope_scaling` beside each other.

    As in transformers, the older `rope_scaling` wins over `rope_parameters`, either one over a theta beside it, and an
    original length beside them over theirs.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    if not isinstance(config.get(key) or {}, dict):
        raise SkipSpecError(f"config.json says {key}={config[key]!r}; need an object.")
    scaling = dict(config.get(key) or {})
    if any(isinstance(value, dict) for value in scaling.values()):
        raise SkipSpecError("config.json has rope_parameters per layer type, which we do not compute; use mlx-lm.")
    flat = {key: value for key, value in config.items() if key != "rope_parameters"}
    flat["rope_theta"] = scaling.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    if "partial_rotary_factor" in scaling:
        flat["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    if config.get("original_max_position_embeddings"):
        scaling["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    flat["rope_scaling"] = scaling if _rope_type(scaling) != "default" else None
    return flat


def _rope_type(scaling: dict[str, Any]) -> str:
    return scaling.get("rope_type") or scaling.get("type") or "default"


def _rope(config: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    theta, scaling = float(config["rope_theta"]), config["rope_scaling"]
    if scaling is None:
        return theta, None
    kind = _rope_type(scaling)
    if kind not in ROPE_KEYS:
        raise SkipSpecError(
            f"config.json asks for RoPE type {kind!r}; need one of {', '.join(ROPE_KEYS)}. Use mlx-lm for this model."
        )
    given = {key: value for key, value in scaling.items() if value is not None and key not in ("rope_type", "type")}
    if config.get("max_position_embeddings"):
        given.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    if kind == "yarn":
        given = _yarn(given)
    unused = given.keys() - ROPE_KEYS[kind] - {"original_max_position_embeddings"}
    if unused:
        raise SkipSpecError(f"config.json has {kind} RoPE with {sorted(unused)[0]!r}, which our blocks do not compute.")
    missing = ROPE_REQUIRED[kind] - given.keys()
    if missing:
        raise SkipSpecError(f"config.json has {kind} RoPE without {sorted(missing)[0]!r}; add it to rope_scaling.")
    for key in sorted(ROPE_REQUIRED[kind]):
        _need_positive(key, given[key])
    return theta, {"rope_type": kind, **{key: given[key] for key in ROPE_KEYS[kind] & given.keys()}}


def _yarn(given: dict[str, Any]) -> dict[str, Any]:
    """Spell out what transformers takes for granted and mlx-lm's YaRN reads otherwise.

    transformers: an `attention_factor` wins; mscale counts only together with mscale_all_dim. mlx-lm's YarnRoPE scales
    by (0.1·mscale·ln f + 1) / (0.1·mscale_all_dim·ln f + 1), so any attention factor can be said in mscale.
    """
    given = dict(given)
    if given.pop("truncate", True) is not True:
        raise SkipSpecError("config.json has yarn RoPE with truncate=false, which our blocks do not compute.")
    attention_factor = given.pop("attention_factor", None)
    if not (given.get("mscale") and given.get("mscale_all_dim")):
        given.pop("mscale", None)
        given.pop("mscale_all_dim", None)
    if attention_factor is not None:
        given.pop("mscale_all_dim", None)
        factor = given.get("factor", 1.0)
        if factor > 1:
            given["mscale"] = (attention_factor - 1.0) / (0.1 * math.log(factor))
        elif attention_factor != 1.0:
            raise SkipSpecError("config.json has yarn RoPE with factor <= 1 and an attention_factor; drop one of them.")
    return given
