"""Unrolled training of a bridge in MLX, under a budget of minutes, on features kept on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mlx_skipspec.convert.checkpoints import Checkpoints
from mlx_skipspec.convert.head_rows import head_rows
from mlx_skipspec.convert.objective import DECAY, STREAMS, TOP, conditional, whole
from mlx_skipspec.convert.unroll_mlx import divergence, streams
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.hvc import HVC
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.target import Target

BATCH = 4  # windows per step
SAMPLED = 1024  # other rows of the head scored in a step, beside the frequent ones
RATE, WARMUP, WEIGHT_DECAY, CLIP = 3e-3, 20, 0.01, 1.0
LOOKS = 8  # times the held-out windows are looked at


def features_of(target: Target, plan: SkipPlan, window: Sequence[int]) -> dict[str, mx.array]:
    """What a fit needs of a window, all lazy, without the batch axis: by the names of `feature_files` hidden states
    (L, D), rows (KV heads, L, head size) and `top` (L, TOP); as `entering` what enters the layer behind the gap."""
    kv = target.make_kv()
    x = target.run(target.embed(mx.array(window)), plan.before, kv)
    h = target.run(x, plan.skipped, kv)
    found = {"x": x, "entering": h}
    for i in plan.after:
        _, found[f"k.{i}"], found[f"v.{i}"] = target.block(i).rows(h)
        h = target.run(h, [i], kv)
    top = mx.argpartition(-target.logits(h), TOP, axis=-1)[..., :TOP]
    return {name: value[0] for name, value in (found | {"last": h, "top": top}).items()}


@dataclass
class Progress:
    """Where a training stands: steps taken, seconds used, and how good the best bridge so far is."""

    step: int = 0
    seconds: float = 0.0
    best: float = -1.0


class FitTraining:
    """Trains a bridge; the target stays as it is.

    Args:
        features: of the training windows with these indices, numpy by name.
        scored: (n, L), of the training windows: whether training is for what follows a position.
        held_out: features of the windows not trained on, and their `scored`.
        frequent: the text's most frequent tokens.
        start: the bridge's tensors at the start, kept in every checkpoint.
    """

    def __init__(
        self,
        target: Target,
        plan: SkipPlan,
        bridge: HVC,
        features: Callable[[Sequence[int]], dict[str, np.ndarray]],
        scored: np.ndarray,
        held_out: Sequence[tuple[dict[str, mx.array], np.ndarray]],
        frequent: np.ndarray,
        checkpoints: Checkpoints,
        start: dict[str, np.ndarray],
    ) -> None:
        self.target, self.plan, self.bridge = target, plan, bridge
        self.features, self.scored, self.held_out, self.frequent = features, scored, held_out, frequent
        self.checkpoints, self.start = checkpoints, start
        self.optimizer = optim.AdamW(learning_rate=RATE, betas=[0.9, 0.95], weight_decay=WEIGHT_DECAY)
        self.optimizer.init(bridge.trainable_parameters())
        self.progress = Progress()
        self.best = dict(tree_flatten(bridge.parameters()))

    def train(self, budget_seconds: float, progress: Callable[[float, str], None]) -> None:
        """Go on until the budget is used up, then leave the best bridge in `best`.

        The rate falls along a cosine to a tenth. Every eighth of the budget the held-out windows are looked at and a
        checkpoint is written. `progress` hears the seconds used and how it goes.
        """
        self._resume()
        self._look()
        looked = self.progress.seconds
        while self.progress.seconds < budget_seconds:
            started = time.monotonic()
            done = self.progress.seconds / budget_seconds
            warm = min(1.0, (self.progress.step + 1) / WARMUP)
            self.optimizer.learning_rate = RATE * warm * (0.55 + 0.45 * math.cos(math.pi * done))
            loss = self.step()
            self.progress.seconds += time.monotonic() - started
            if self.progress.seconds - looked > budget_seconds / LOOKS or self.progress.seconds >= budget_seconds:
                looked = self.progress.seconds
                self._look()
                self._save()
            progress(min(self.progress.seconds, budget_seconds), f"loss {loss:.2f}, held-out {self.progress.best:.2f}")

    def step(self) -> float:
        """Take one step and return its loss.

        Raises:
            SkipSpecError: it is not finite.
        """
        number = self.progress.step
        count = len(self.scored)
        at = np.random.default_rng((0, number)).choice(count, min(BATCH, count), replace=False)
        arrays = self.features(at)
        scored = self.scored[at]
        rows, weight = head_rows(arrays.pop("top")[scored], self.frequent, self.target.vocab_size, SAMPLED, (1, number))
        given = {name: mx.array(value).astype(self.target.dtype) for name, value in arrays.items()}
        compute = nn.value_and_grad(self.bridge, lambda b: self._losses(b, given, scored, mx.array(rows), weight)[0])
        loss, gradients = compute(self.bridge)
        gradients, _ = optim.clip_grad_norm(gradients, CLIP)
        self.optimizer.update(self.bridge, gradients)
        mx.eval(self.bridge.parameters(), self.optimizer.state, loss)
        if not math.isfinite(loss.item()):
            raise SkipSpecError(
                f"The loss of step {number} is NaN or infinite; fit with --dtype float32, or --minutes 0."
            )
        self.progress.step += 1
        return loss.item()

    def agreement(self) -> list[float]:
        """Share of held-out positions where each stream says what the target says, given that all before did."""
        hits, scored = [], []
        for window, where in self.held_out:
            at, hit = np.nonzero(where.ravel())[0], self._losses(self.bridge, window, where, None, 0.0)[1]
            found = np.ones((STREAMS, where.size), dtype=bool)
            found[:, at] = np.array(hit)
            hits.append(found.reshape(STREAMS, *where.shape))
            scored.append(where)
        return conditional(np.concatenate(hits, axis=1), np.concatenate(scored))

    def _losses(
        self,
        bridge: HVC,
        given: dict[str, mx.array],
        scored: np.ndarray,
        rows: mx.array | None,
        log_weight: np.ndarray | float,
    ) -> tuple[mx.array, mx.array]:
        """The weighted loss, and agreement of each stream at the scored positions, (STREAMS, how many)."""

        def in_fp32(x: mx.array, r: mx.array) -> mx.array:
            return bridge(x.astype(mx.float32), r).astype(x.dtype)

        kv = [(given[f"k.{i}"], given[f"v.{i}"]) for i in self.plan.after]
        last, weight = given["last"], mx.array(log_weight)
        hidden = streams(in_fp32, self.target, self.plan.after, kv, given["x"], last, STREAMS)
        window, position = np.nonzero(scored)
        at = mx.array(window * scored.shape[1] + position)

        def logits(h: mx.array) -> mx.array:
            return self.target.logits(h.flatten(0, 1)[at], rows)

        truth = logits(last)
        pairs = [divergence(logits(h), truth, weight) for h in hidden]
        total = mx.array(0.0)
        for s, (loss, _) in enumerate(pairs, 1):
            meant = whole(scored, s)[window, position]
            total += DECAY ** (s - 1) * (loss * mx.array(meant)).sum() / max(meant.sum().item(), 1)
        return total, mx.stack([hit for _, hit in pairs])

    def _look(self) -> None:
        """Keep the bridge if it is the best so far, by the tokens a whole draft may expect to get accepted."""
        expected = float(np.cumprod(self.agreement()).sum())
        if expected > self.progress.best:
            self.progress.best = expected
            self.best = {name: mx.array(value) for name, value in tree_flatten(self.bridge.parameters())}

    def _save(self) -> None:
        parts = {
            "bridge": self.bridge.parameters(),
            "adam": self.optimizer.state,
            "best": self.best,
            "start": self.start,
        }
        tensors = {
            f"{part}.{name}": np.array(value) for part, tree in parts.items() for name, value in tree_flatten(tree)
        }
        self.checkpoints.save(self.progress.step, tensors, asdict(self.progress))

    def _resume(self) -> None:
        if (found := self.checkpoints.latest()) is None:
            return
        _, tensors, extra = found
        self.progress = Progress(**extra)
        part: dict[str, list[tuple[str, mx.array]]] = {"bridge": [], "adam": [], "best": [], "start": []}
        for key, value in tensors.items():
            name, _, rest = key.partition(".")
            part[name].append((rest, mx.array(value)))
        self.bridge.load_weights(part["bridge"])
        self.optimizer.state = tree_unflatten(part["adam"])
        self.best = dict(part["best"])
