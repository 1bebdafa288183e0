"""The full model, cut at layer borders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import mlx.core as mx

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.kv import KV
from mlx_skipspec.layer_kv import Window
from mlx_skipspec.models.block import Block, Model, weight_rows
from mlx_skipspec.plan import SkipPlan

KV_BITS, KV_GROUPS = (2, 3, 4, 6, 8), (32, 64, 128)  # what mx.quantize packs


def check_kv_format(bits: int | None, group_size: int) -> None:
    """Refuse rows that no model's cache could be quantised to.

    Raises:
        SkipSpecError: bits or group size are none of those mx.quantize packs.
    """
    if bits not in (None, *KV_BITS) or group_size not in KV_GROUPS:
        raise SkipSpecError(
            f"kv_bits={bits}, kv_group_size={group_size}; need bits of {KV_BITS} and a group size of {KV_GROUPS}."
        )


class Target:
    """The frozen model whose choices are the output: embed, run any range of layers, and read logits."""

    def __init__(self, model: Model, folder: Path | None = None) -> None:
        self.model = model
        self.folder = folder  # where it was loaded from: its sidecar may be there
        self.args = model.args
        self.depth = model.args.num_hidden_layers
        self.hidden_size = model.args.hidden_size
        self.vocab_size = model.args.vocab_size
        self.layers = range(self.depth)

    def make_kv(
        self, max_kv_size: int | None = None, bits: int | None = None, group_size: int = 64, exact: bool = False
    ) -> KV:
        """An empty cache: each layer its own window, none wider than `max_kv_size` rows; `exact` as in `KV`.

        As in mlx-lm, rows cut to `max_kv_size` always include the first four; a window of the model's own keeps none.

        Raises:
            SkipSpecError: the rows can't be quantised like that, or `max_kv_size` is too small.
        """
        check_kv_format(bits, group_size)
        head_dim = self.args.head_dim
        if bits is not None and head_dim % group_size:
            raise SkipSpecError(
                f"kv_group_size={group_size} does not divide this model's head size {head_dim}; "
                f"need one of {KV_GROUPS} that does. Without one, drop --kv-bits."
            )
        windows: list[Window | None] = []
        for size in self.args.windows:
            if max_kv_size is not None and (size is None or size > max_kv_size):
                windows.append(Window(max_kv_size, keep=4))
            else:
                windows.append(None if size is None else Window(size))
        return KV(windows, bits, group_size, exact)

    @property
    def dtype(self) -> mx.Dtype:
        """What hidden states are made of."""
        return self.model.model.norm.weight.dtype

    def block(self, layer: int) -> Block:
        return self.model.model.layers[layer]

    def embed(self, tokens: mx.array) -> mx.array:  # (L,) -> (1, L, D)
        return self.model.model.embed_tokens(tokens[None])

    def run(self, h: mx.array, layers: Iterable[int], kv: KV, plan: SkipPlan | None = None) -> mx.array:
        """Run `layers` in order on hidden states, appending their K/V rows; (1, L, D) -> (1, L, D).

        With a `plan`, only the sub-blocks it keeps are run. The result is not normed.
        """
        return self.states(h, layers, kv, plan)[-1]

    def states(
        self, h: mx.array, layers: Iterable[int], kv: KV, plan: SkipPlan | None = None
    ) -> list[mx.array]:  # (1, L, D) each
        """`h`, and what `run` makes of it behind each of the layers."""
        states = [h]
        masks: dict[object, object] = {}
        for i in layers:
            block, cache = self.model.model.layers[i], kv[i]
            if plan is None or i in plan.attention:
                kind = (cache.window, cache.offset, cache.forgotten)  # layers alike in these see alike
                if kind not in masks:
                    masks[kind] = cache.mask(h.shape[1])
                h = block.attend(h, masks[kind], cache)
            if plan is None or i in plan.mlp:
                h = block.think(h)
            states.append(h)
        return states

    def logits(self, h: mx.array, rows: mx.array | None = None) -> mx.array:  # (B, L, D) -> (B, L, V)
        """Final norm and head, from last-layer hidden states; with `rows` (n,) those tokens' logits, (B, L, n)."""
        return self.score(self.normed(h), rows)

    def normed(self, h: mx.array) -> mx.array:  # (B, L, D) -> (B, L, D)
        """The final norm, in front of the head."""
        return self.model.model.norm(h)

    def score(self, normed: mx.array, rows: mx.array | None = None) -> mx.array:  # (B, L, D) -> (B, L, V)
        """The head alone, or some `rows` (n,) of it."""
        return self.model.head(normed, rows)

    def head_rows(self, rows: mx.array) -> mx.array:  # (n,) -> (n, D)
        """Rows of the head, dequantised if need be."""
        return weight_rows(self.model.head_layer, rows)

    def __call__(self, tokens: mx.array, kv: KV) -> tuple[mx.array, list[mx.array]]:
        """One pass of the whole model over `tokens` (L,): logits (1, L, V) and the hidden states (1, L, D) in front of
        the first layer and behind each."""
        states = self.states(self.embed(tokens), self.layers, kv)
        return self.logits(states[-1]), states

    def prefill(
        self, tokens: mx.array, kv: KV, step_size: int = 2048, progress: Callable[[int], None] = lambda done: None
    ) -> None:
        """Fill the cache with `tokens` (L,), `step_size` at a time, evaluated; `progress` hears how many are done."""
        with kv.prefilling():
            for start in range(0, tokens.size, step_size):
                block = tokens[start : start + step_size]
                self.run(self.embed(block), self.layers, kv)
                mx.eval(kv.state)
                mx.clear_cache()
                progress(start + block.size)
