"""The full model, cut at layer borders."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import mlx.core as mx

from mlx_skipspec.kv import KV
from mlx_skipspec.models.block import Model
from mlx_skipspec.plan import SkipPlan


class Target:
    """The frozen model whose choices are the output: embed, run any range of layers, and read logits."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.args = model.args
        self.depth = model.args.num_hidden_layers
        self.hidden_size = model.args.hidden_size
        self.vocab_size = model.args.vocab_size
        self.layers = range(self.depth)

    def embed(self, tokens: mx.array) -> mx.array:  # (L,) -> (1, L, D)
        return self.model.model.embed_tokens(tokens[None])

    def run(self, h: mx.array, layers: Iterable[int], kv: KV, plan: SkipPlan | None = None) -> mx.array:
        """Run `layers` in order on hidden states, appending their K/V rows; (1, L, D) -> (1, L, D).

        With a `plan`, only the sub-blocks it keeps are run. The result is not normed.
        """
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
        return h

    def logits(self, h: mx.array) -> mx.array:  # (1, L, D) -> (1, L, V)
        """Final norm and head, from last-layer hidden states."""
        return self.model.head(self.model.model.norm(h))

    def __call__(self, tokens: mx.array, kv: KV) -> tuple[mx.array, mx.array]:
        """One pass of the whole model over `tokens` (L,): logits (1, L, V) and last-layer hidden states (1, L, D)."""
        hidden = self.run(self.embed(tokens), self.layers, kv)
        return self.logits(hidden), hidden

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
