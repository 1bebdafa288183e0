"""The frozen Hugging Face model: what its layers say about a text, and its last layers to run a student through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from mlx_skipspec.base_model import Base
from mlx_skipspec.errors import SkipSpecError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Features:
    """What training needs of a batch of windows, whole or from disk.

    Attributes:
        x: hidden states in front of some layers, by layer; (B, L, D).
        rows: keys (rotated) and values of the last layers, by layer; each (B, KV heads, L, head size).
        last: behind the last layer, before the final norm; (B, L, D).
        top: the likeliest tokens in order; (B, L, n).
        scored: whether training is for what follows a position; (B, L).
    """

    x: dict[int, torch.Tensor]
    rows: dict[int, tuple[torch.Tensor, torch.Tensor]]
    last: torch.Tensor
    top: torch.Tensor
    scored: torch.Tensor

    @cached_property
    def position(self) -> torch.Tensor:
        """The scored positions of each window, rising, and -1 behind them; (B, P)."""
        counts = self.scored.sum(1)
        order = self.scored.int().argsort(dim=1, descending=True, stable=True)[:, : max(int(counts.max()), 1)]
        return order.masked_fill(torch.arange(order.shape[1], device=order.device) >= counts[:, None], -1)

    def arrays(self) -> dict[str, np.ndarray]:
        """By the names of `feature_files`."""
        found = {f"x.{a}": x for a, x in self.x.items()} | {"last": self.last}
        for i, (k, v) in self.rows.items():
            found |= {f"k.{i}": k, f"v.{i}": v}
        return {name: value.float().cpu().numpy() for name, value in found.items()} | {"top": self.top.cpu().numpy()}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], scored: torch.Tensor, dtype: torch.dtype) -> Features:
        """From what `arrays` gave, and a text's own `scored`, on whose device all will be."""
        device = scored.device
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        tensors = {name: value.long() if name == "top" else value.to(dtype) for name, value in tensors.items()}
        return cls(
            x={int(name[2:]): value for name, value in tensors.items() if name.startswith("x.")},
            rows={int(n[2:]): (k, tensors[f"v.{n[2:]}"]) for n, k in tensors.items() if n.startswith("k.")},
            last=tensors["last"],
            top=tensors["top"],
            scored=scored,
        )


class Teacher:
    """A causal LM of transformers, cut like `mlx_skipspec.target.Target`.

    Raises:
        SkipSpecError: a model of another family.
    """

    def __init__(self, model: Any) -> None:
        if model.config.model_type not in FAMILIES:
            raise SkipSpecError(f"A {model.config.model_type!r} model; need one of {', '.join(FAMILIES)}.")
        self.model = model.eval().requires_grad_(False)
        self.config = model.config
        self.depth, self.hidden_size = model.config.num_hidden_layers, model.config.hidden_size
        self.layers = [Layer(layer, model.config) for layer in model.model.layers]

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def norm(self) -> nn.Module:
        return self.model.model.norm

    @property
    def head(self) -> torch.Tensor:  # (V, D)
        return self.model.lm_head.weight

    @torch.no_grad()
    def states(self, ids: torch.Tensor, layers: Iterable[int]) -> dict[int, torch.Tensor]:
        """Hidden states entering each of `layers`, and behind the last layer under the key `depth`; (B, L, D)."""
        found: dict[int, torch.Tensor] = {}
        modules = {i: self.model.model.layers[i] for i in layers} | {self.depth: self.norm}

        def keeper(i: int) -> Any:
            return lambda module, args: found.__setitem__(i, args[0])

        hooks = [module.register_forward_pre_hook(keeper(i)) for i, module in modules.items()]
        try:
            self.model.model(input_ids=ids.to(self.device), use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    @torch.no_grad()
    def features(
        self, ids: torch.Tensor, scored: torch.Tensor, borders: Iterable[int], tail: int, top: int
    ) -> Features:
        """What students of up to `tail` last layers train on, from windows (B, L)."""
        states = self.states(ids, {*borders, *range(self.depth - tail, self.depth)})
        last = states[self.depth]
        cos_sin = self.rotation(last, torch.arange(last.shape[1], device=self.device)[None])
        rows = {i: self.layers[i].project(states[i], cos_sin)[1:] for i in range(self.depth - tail, self.depth)}
        likeliest = self._likeliest(last, top)
        return Features({border: states[border] for border in borders}, rows, last, likeliest, scored.to(self.device))

    def _likeliest(self, last: torch.Tensor, count: int) -> torch.Tensor:
        """The likeliest tokens (B, L, count), a window at a time: a batch's logits can be larger than the model."""
        if not count:
            return last.new_zeros((*last.shape[:2], 0), dtype=torch.long)
        return torch.cat([F.linear(self.norm(h), self.head).topk(count, dim=-1).indices for h in last.split(1)])

    def rotation(self, like: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of RoPE at positions (B, P), of the type of `like`."""
        return self.model.model.rotary_emb(like, position.clamp(min=0))

    def base(self, name: str) -> Base:
        """What a sidecar remembers of this model."""
        parameters = dict(self.model.named_parameters())

        def rows_of(tensor: str, rows: list[int]) -> np.ndarray:
            return parameters[tensor][rows].float().cpu().numpy()

        return Base.of(self.depth, self.hidden_size, self.config.vocab_size, rows_of, name)


class Layer:
    """One frozen decoder layer, its attention opened up."""

    def __init__(self, module: Any, config: Any) -> None:
        self.module, self.attention = module, module.self_attn
        self.head_dim, self.scale = self.attention.head_dim, self.attention.scaling
        self.window = getattr(self.attention, "sliding_window", None)
        if config.model_type == "mistral":
            self.window = config.sliding_window

    def project(
        self, h: torch.Tensor, cos_sin: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys (rotated) and values of hidden states (B, L, D); each (B, heads, L, head size)."""
        attention, normed = self.attention, self.module.input_layernorm(h)
        q, k, v = (
            project(normed).unflatten(-1, (-1, self.head_dim))
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm(q), attention.k_norm(k)
        q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *cos_sin)
        return q, k, v.transpose(1, 2)

    def out(self, h: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """The rest of the layer, from the attention's mixed values (B, heads, L, head size)."""
        h = h + self.attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return h + self.module.mlp(self.module.post_attention_layernorm(h))
