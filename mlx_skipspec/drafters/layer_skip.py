"""The model drafts for itself: some of its own layers, a bridge over the gap, a head."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.heads.dense import DenseHead
from mlx_skipspec.heads.protocol import Head
from mlx_skipspec.hvc import HVC
from mlx_skipspec.kv import KV
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.target import Target


class LayerSkip:
    """Drafts with the layers of `plan`; a contiguous plan may be bridged by HVC. Draws as `sampler` does.

    At the first draft step r is the target's own last-layer state, from the second on the drafter's (SCIENCE.md §1 of
    the thesis's loop). Draft rows go into the shared cache and are rewound before `draft` returns.
    """

    def __init__(
        self, plan: SkipPlan, bridge: HVC | None = None, head: Head | None = None, sampler: Sampler = GREEDY
    ) -> None:
        if bridge is not None and not plan.contiguous:
            raise SkipSpecError(f"A bridge needs a contiguous plan; SkipPlan({plan.name}) has no single gap.")
        self.plan, self.bridge, self.sampler, self._given_head = plan, bridge, sampler, head
        self.name, self.dropped = "skip", 0

    @property
    def about(self) -> str:
        """What the time of a draft step depends on."""
        bridge = sum(w.size for _, w in tree_flatten(self.bridge.parameters())) if self.bridge is not None else 0
        head = getattr(self._given_head, "finder", self._given_head)
        return f"skip({self.plan.name}), bridge {bridge}, {type(head).__name__}"

    def begin(self, target: Target, kv: KV) -> None:
        if self.plan.depth != target.depth:
            raise SkipSpecError(
                f"SkipPlan({self.plan.name}) is for a {self.plan.depth}-layer model; this one has {target.depth}."
            )
        self.target, self.kv = target, kv
        self.head = self._given_head or DenseHead(target.logits, self.sampler)
        self.r = mx.zeros((1, 1, target.hidden_size))

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        guess = []
        for token, _ in self.tokens(context, k):
            mx.async_eval(token)
            guess.append(token)
        return mx.concatenate(guess)

    def tokens(self, context: Sequence[int], k: int) -> Generator[tuple[mx.array, mx.array], None, None]:
        """At most k tokens one by one, each with the probability the head gives it, both (1,) and lazy.

        Whenever it has given one, the cache is as long as before.
        """
        self.head.read(context)
        length, kept = self.kv.length, [self.kv[layer] for layer in self.plan.kept]
        token, r = mx.array([context[-1]], dtype=mx.uint32), self.r
        held: list[Any] = []
        for i in range(k):
            for layer, rows in zip(kept, held, strict=False):
                layer.put_back(rows)
            held = []  # or nothing could be appended in place
            try:
                r = self.step(token, r)
                held = [layer.hold() for layer in kept]
            finally:
                self.kv.rewind_to(length)
            token, probability = self.head(r, len(context) + i)
            yield token, probability

    def step(self, token: mx.array, r: mx.array) -> mx.array:  # (1,), (1, 1, D) -> (1, 1, D)
        """One draft step: the hidden state that stands for the target's last layer at this token."""
        h = self.target.embed(token)
        if self.bridge is None:
            return self.target.run(h, self.plan.kept, self.kv, self.plan)
        h = self.target.run(h, self.plan.before, self.kv)
        mx.async_eval(h)  # the device is at it while the host builds the rest
        return self.target.run(self.bridge(h, r), self.plan.after, self.kv)

    def observe(self, hidden: mx.array) -> None:
        self.r = hidden[:, -1:]
