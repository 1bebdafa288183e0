"""The decoder all families share: attention, MLP, block, and the model mlx-lm's loader fills."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import quantized_scaled_dot_product_attention
from mlx_lm.models.rope_utils import initialize_rope

from mlx_skipspec.layer_kv import LayerKV
from mlx_skipspec.models.args import ModelArgs

PIECE_BYTES = 1 << 21  # of a weight's rows gathered at a time for one x, on a CPU


class Attention(nn.Module):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.scale = args.num_attention_heads, args.num_key_value_heads, args.head_dim**-0.5
        size, wide, narrow = args.hidden_size, self.heads * args.head_dim, self.kv_heads * args.head_dim
        self.q_proj = nn.Linear(size, wide, bias=args.qkv_bias)
        self.k_proj = nn.Linear(size, narrow, bias=args.qkv_bias)
        self.v_proj = nn.Linear(size, narrow, bias=args.qkv_bias)
        self.o_proj = nn.Linear(wide, size, bias=args.o_bias)
        if args.qk_norm:
            self.q_norm = nn.RMSNorm(args.head_dim, eps=args.rms_norm_eps)
            self.k_norm = nn.RMSNorm(args.head_dim, eps=args.rms_norm_eps)
        self.rope = initialize_rope(
            args.head_dim, args.rope_theta, args.rope_traditional, args.rope_scaling, args.max_position_embeddings
        )

    def project(self, x: mx.array, offset: int) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys (both rotated), values at positions from `offset` on; (B, L, D) -> (B, heads, L, head size)."""
        queries, keys, values = (
            projected.reshape(*x.shape[:2], heads, -1)
            for projected, heads in (
                (self.q_proj(x), self.heads),
                (self.k_proj(x), self.kv_heads),
                (self.v_proj(x), self.kv_heads),
            )
        )
        if "q_norm" in self:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries = self.rope(queries.transpose(0, 2, 1, 3), offset=offset)
        keys = self.rope(keys.transpose(0, 2, 1, 3), offset=offset)
        return queries, keys, values.transpose(0, 2, 1, 3)

    def gather(self, mixed: mx.array) -> mx.array:  # (B, heads, L, head size) -> (B, L, D)
        """The heads' mixed values as one hidden state."""
        return self.o_proj(mixed.transpose(0, 2, 1, 3).flatten(2))

    def __call__(self, x: mx.array, mask: Any, cache: LayerKV) -> mx.array:  # (1, L, D) -> (1, L, D)
        queries, keys, values = self.project(x, cache.offset)
        rows = cache.update_and_fetch(keys, values)
        if cache.bits is None:
            out = mx.fast.scaled_dot_product_attention(queries, *rows, scale=self.scale, mask=mask)
        else:
            out = quantized_scaled_dot_product_attention(
                queries, *rows, scale=self.scale, mask=mask, group_size=cache.group_size, bits=cache.bits
            )
        return self.gather(out)


class MLP(nn.Module):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(args.hidden_size, args.intermediate_size, bias=args.mlp_bias)
        self.up_proj = nn.Linear(args.hidden_size, args.intermediate_size, bias=args.mlp_bias)
        self.down_proj = nn.Linear(args.intermediate_size, args.hidden_size, bias=args.mlp_bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.self_attn = Attention(args)
        self.mlp = MLP(args)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def attend(self, h: mx.array, mask: Any, cache: LayerKV) -> mx.array:
        return h + self.self_attn(self.input_layernorm(h), mask, cache)

    @property
    def scale(self) -> float:
        """What attention multiplies q · k by."""
        return self.self_attn.scale

    def rows(self, h: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys and values of hidden states (B, L, D) at positions 0 … L-1; each (B, heads, L, head size)."""
        return self.self_attn.project(self.input_layernorm(h), 0)

    def finish(self, h: mx.array, mixed: mx.array) -> mx.array:
        """The rest of the block, from values mixed elsewhere (B, heads, L, head size)."""
        return self.think(h + self.self_attn.gather(mixed))

    def think(self, h: mx.array) -> mx.array:
        return h + self.mlp(self.post_attention_layernorm(h))


class Decoder(nn.Module):
    """Embedding, blocks and final norm; a holder of weights, `Target` runs it."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Block(args) for _ in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)


class Model(nn.Module):
    """A causal language model with parameters named as in mlx-lm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.model = Decoder(args)
        if not args.tie_word_embeddings:
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    @property
    def head_layer(self) -> nn.Module:
        """Whose rows the head is made of, (V, D)."""
        return self.model.embed_tokens if self.args.tie_word_embeddings else self.lm_head

    def head(self, normed: mx.array, rows: mx.array | None = None) -> mx.array:
        """Logits (B, L, V), or only those of some `rows` of the head (n,): (B, L, n)."""
        if rows is not None:
            return times_rows(normed, self.head_layer, rows)
        return self.head_layer.as_linear(normed) if self.args.tie_word_embeddings else self.lm_head(normed)

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Drop what old checkpoints store and nobody reads."""
        unused = ("rotary_emb.inv_freq",) + (("lm_head.",) if self.args.tie_word_embeddings else ())
        return {name: w for name, w in weights.items() if not any(part in name for part in unused)}


def weight_rows(layer: nn.Module, rows: mx.array) -> mx.array:  # (n,) -> (n, D)
    """Rows of a linear layer's or an embedding's weight, dequantised if need be."""
    if "scales" not in layer:
        return layer.weight[rows]
    return mx.dequantize(*_packed(layer, rows), group_size=layer.group_size, bits=layer.bits, mode=layer.mode)


def times_rows(x: mx.array, layer: nn.Module, rows: mx.array) -> mx.array:  # (B, L, D), (n,) -> (B, L, n)
    """x by some rows of a weight, gathered as they are packed."""
    if "scales" in layer:
        return mx.quantized_matmul(
            x, *_packed(layer, rows), transpose=True, group_size=layer.group_size, bits=layer.bits, mode=layer.mode
        )
    weight, step = layer.weight, rows.size
    if x.size == x.shape[-1] and mx.default_device() == mx.Device(mx.cpu):
        # A large result gets fresh pages from the system every time, which costs a CPU more than the product.
        step = max(1, PIECE_BYTES // (weight.shape[1] * weight.itemsize))
    parts = [x @ weight[rows[i : i + step]].T.astype(x.dtype) for i in range(0, rows.size, step)]
    return mx.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def _packed(layer: nn.Module, rows: mx.array) -> tuple[mx.array, mx.array, mx.array | None]:
    biases = layer.biases[rows] if layer.get("biases") is not None else None
    return layer.weight[rows], layer.scales[rows], biases
