"""One training step of several bridges at once, sharing each teacher pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from mlx_skipspec.convert import objective
from mlx_skipspec.convert.head_rows import head_rows, most_frequent
from mlx_skipspec.convert.hvc_torch import HVC
from mlx_skipspec.convert.objective import DECAY, STREAMS
from mlx_skipspec.convert.teacher import Features, Teacher
from mlx_skipspec.convert.unroll_torch import divergence, picked, streams, whole
from mlx_skipspec.convert.world import World
from mlx_skipspec.plan import SkipPlan

LOGITS = 1 << 26  # of student and of teacher, held at a time


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        streams: draft steps unrolled. batch: windows per process and pass. accumulate: passes per step.
        steps: of the optimiser; the rate warms up over `warmup` of them to `lr` and falls along a cosine to a tenth.
        dropout: share of the bridge's inputs that is zero in a pass, against learning little text by heart.
        sampled: rows of the head drawn per pass beside the likely and the `frequent` ones; 0 scores all.
    """

    streams: int = STREAMS
    batch: int = 8
    accumulate: int = 1
    steps: int = 1000
    lr: float = 2e-3
    warmup: int = 50
    weight_decay: float = 0.01
    dropout: float = 0.0
    sampled: int = 0
    frequent: int = 1024
    seed: int = 0

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, …"""
        warmup = min(self.warmup, self.steps // 5)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        done = (step - warmup) / max(self.steps - warmup, 1)
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * min(done, 1.0)))


class Trainer:
    """Bridges, their optimiser, and the batches of any step, which depend on the seed and the step's number only.

    Args:
        windows, scored: (n, L) token ids and whether training is for what follows them.
        features: the teacher's, of the windows with these indices.
    """

    def __init__(
        self,
        teacher: Teacher,
        bridges: Mapping[SkipPlan, HVC],
        windows: np.ndarray,
        scored: np.ndarray,
        features: Callable[[Sequence[int]], Features],
        recipe: Recipe,
        world: World,
    ) -> None:
        self.teacher, self.bridges, self.windows, self.features = teacher, dict(bridges), windows, features
        self.recipe, self.world = recipe, world
        self.parameters = [p for bridge in self.bridges.values() for p in bridge.parameters()]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=recipe.lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
        )
        self.chains = np.stack([objective.whole(scored, s).sum(1) for s in range(1, recipe.streams + 1)])
        self.frequent = most_frequent(windows, teacher.config.vocab_size, recipe.frequent)

    def step(self, number: int) -> dict[str, dict[str, list[float]]]:
        """Take step `number` (from 0): loss and conditional top-1 agreement by draft position, by plan."""
        recipe, world = self.recipe, self.world
        for bridge in self.bridges.values():
            bridge.train()
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        tally = torch.zeros(len(self.bridges), 3, recipe.streams, device=self.teacher.device)
        passes = recipe.accumulate * world.size
        everyones = batch_of(len(self.windows), recipe.batch * passes, number, recipe.seed)
        total = self.chains[:, everyones].sum(1).clip(min=1).tolist()
        for part in range(recipe.accumulate):
            at = number * passes + part * world.size + world.rank
            self._pass(batch_of(len(self.windows), recipe.batch, at, recipe.seed), at, total, tally)
        world.sum([*(parameter.grad for parameter in self.parameters), tally])
        for bridge in self.bridges.values():
            torch.nn.utils.clip_grad_norm_(bridge.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate(number)
        self.optimizer.step()
        return {plan.name: report(sums) for plan, sums in zip(self.bridges, tally, strict=True)}

    def _pass(self, indices: Sequence[int], at: int, total: Sequence[int], tally: torch.Tensor) -> None:
        features = self.features(indices)
        torch.manual_seed(np.random.SeedSequence((self.recipe.seed, at)).generate_state(1).item())  # of the dropout
        students = [
            hidden
            for plan, bridge in self.bridges.items()
            for hidden in student_streams(self.teacher, plan, bridge, features, self.recipe.streams)
        ]
        leaves = [hidden.detach().requires_grad_() for hidden in students]
        rows = None
        if self.recipe.sampled:
            rows = head_rows(
                features.top[features.scored].cpu().numpy(),
                self.frequent,
                self.teacher.config.vocab_size,
                self.recipe.sampled,
                (self.recipe.seed, at),
            )
        tally += score(self.teacher, features, leaves, rows, total)
        torch.autograd.backward(students, [leaf.grad for leaf in leaves])

    def state(self) -> dict[str, torch.Tensor]:
        """All that a later step depends on, as flat tensors."""
        found = {}
        for plan, bridge in self.bridges.items():
            found |= {f"bridge.{plan.name}.{name}": value for name, value in bridge.state_dict().items()}
        for i, values in self.optimizer.state_dict()["state"].items():
            found |= {f"adam.{i}.{name}": torch.as_tensor(value) for name, value in values.items()}
        return found

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue from `state()`."""
        for plan, bridge in self.bridges.items():
            start = f"bridge.{plan.name}."
            bridge.load_state_dict({n.removeprefix(start): v for n, v in tensors.items() if n.startswith(start)})
        moments: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, i, key = name.split(".")
                moments.setdefault(int(i), {})[key] = value
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})


def student_streams(
    teacher: Teacher, plan: SkipPlan, bridge: HVC, features: Features, count: int
) -> list[torch.Tensor]:
    """The streams of one plan at the scored positions, (B, P, D)."""
    return streams(
        bridge,
        [teacher.layers[i] for i in plan.after],
        [features.rows[i] for i in plan.after],
        features.x[plan.skipped.start],
        features.last,
        teacher.rotation(features.last, features.position),
        features.position,
        count,
    )


def score(
    teacher: Teacher,
    features: Features,
    students: Sequence[torch.Tensor],
    rows: tuple[np.ndarray, np.ndarray] | None,
    total: Sequence[int],
) -> torch.Tensor:
    """Losses and agreement of plans × streams, (plans, 3, streams): loss, hits and chances, each hit given all before.

    Where a student wants a gradient, that of Σ over streams of 0.8^(s-1) · its loss goes into its `grad`. The logits of
    some positions are held at a time.

    Args:
        students: last hidden states (B, P, D) at the scored positions, plan by plan, stream by stream.
        rows: of the head to score and their log weights; None scores all.
        total: positions each stream's mean is over, here and wherever else the step is computed; one per stream.
    """
    count, position, last = len(total), features.position, picked(features.last, features.position)
    head, log_weight = teacher.head, torch.zeros((), device=last.device)
    if rows is not None:
        head, log_weight = head[torch.as_tensor(rows[0])], torch.as_tensor(rows[1], device=last.device)
    meant = [whole(position, s) for s in range(1, count + 1)]
    hits = torch.zeros(len(students), *position.shape, dtype=torch.bool, device=last.device)
    tally = torch.zeros(len(students) // count, 3, count, device=last.device)
    at_a_time = max(1, LOGITS // len(head))
    there = (position >= 0).nonzero(as_tuple=True)
    for part in zip(*(index.split(at_a_time) for index in there), strict=True):
        with torch.no_grad():
            truth = F.linear(teacher.norm(last[part]), head)
        for n, student in enumerate(students):
            plan, s = divmod(n, count)
            loss, hits[n][part] = divergence(F.linear(teacher.norm(student[part]), head), truth, log_weight)
            mean = (loss * meant[s][part]).sum() / total[s]
            if student.requires_grad:
                (DECAY**s * mean).backward()
            tally[plan, 0, s] += mean.detach()
    for plan, own in enumerate(hits.split(count)):
        right = torch.ones_like(position, dtype=torch.bool)
        for s, hit in enumerate(own):
            chance = meant[s] & (F.pad(right, (1, 0))[:, :-1] if s else right)
            right = hit & chance
            tally[plan, 1:, s] += torch.stack([right.sum(), chance.sum()])
    return tally


def report(sums: torch.Tensor) -> dict[str, list[float]]:
    """A plan's (3, streams) tally in words."""
    loss, hits, chances = sums.tolist()
    return {"loss": loss, "top1": [h / c if c else 0.0 for h, c in zip(hits, chances, strict=True)]}


def batch_of(count: int, size: int, number: int, seed: int) -> list[int]:
    """Windows of the batch `number`: every epoch its own order, batches running across its end."""
    return [_order(count, i // count, seed)[i % count] for i in range(number * size, (number + 1) * size)]


@lru_cache(maxsize=4)
def _order(count: int, epoch: int, seed: int) -> list[int]:
    return np.random.default_rng((seed, epoch)).permutation(count).tolist()
