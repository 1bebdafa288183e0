"""A training run: features, start, steps, held-out agreement, checkpoints."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.convert.checkpoints import Checkpoints
from mlx_skipspec.convert.closed_form_torch import least_squares
from mlx_skipspec.convert.hvc_torch import HVC
from mlx_skipspec.convert.metrics import Metrics
from mlx_skipspec.convert.objective import TOP
from mlx_skipspec.convert.teacher import Teacher
from mlx_skipspec.convert.training import Recipe, Trainer, report, score, student_streams
from mlx_skipspec.convert.window_features import WindowFeatures
from mlx_skipspec.convert.world import World
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.plan import SkipPlan

HELD_OUT = 16  # windows kept from training, to measure agreement on
POSITIONS = 3  # draft steps agreement is measured at, whatever is trained
METRICS = "metrics.jsonl"


class Run:
    """What the steps of a run share.

    Args:
        windows, scored: (n, L) token ids and whether training is for what follows them; the first HELD_OUT windows are
            not trained on.
        folder: of checkpoints and metrics.
    """

    def __init__(
        self,
        teacher: Teacher,
        plans: Sequence[SkipPlan],
        windows: np.ndarray,
        scored: np.ndarray,
        recipe: Recipe,
        world: World,
        folder: Path,
        about: dict[str, Any],
        rank: int = 0,
        features: Path | None = None,
    ) -> None:
        self.teacher, self.plans, self.world, self.recipe = teacher, plans, world, recipe
        self.folder, self.about, self.features_folder = folder, about, features
        top = TOP if recipe.sampled or features else 0
        self.held_out, self.training = (
            WindowFeatures(teacher, plans, windows[part], scored[part], top, world)
            for part in (slice(HELD_OUT), slice(HELD_OUT, None))
        )
        torch.manual_seed(recipe.seed)  # of the MLP's first numbers; all else is drawn by step
        self.bridges = {plan: HVC(teacher.hidden_size, rank, recipe.dropout).to(teacher.device) for plan in plans}
        self.trainer = Trainer(
            teacher, self.bridges, windows[HELD_OUT:], scored[HELD_OUT:], self.training.of, recipe, world
        )
        self.metrics = Metrics(folder / METRICS)
        self.checkpoints = Checkpoints(folder, about | {"recipe": asdict(recipe), "rank": rank, "world": world.size})
        self.first_step, self.before = 0, {}
        self.stopping = False

    def read_ahead(self) -> None:
        """Put the features of all training windows on disk, if they have a folder."""
        if self.features_folder is not None:
            about = {"model": self.about["base"], "text": self.about["text"]}
            self.training.read_ahead(self.features_folder, about, self.recipe.batch)

    @torch.no_grad()
    def agreement(self) -> dict[SkipPlan, list[float]]:
        """Conditional top-1 agreement by draft position on the held-out windows, over the whole vocabulary."""
        total, count = None, max(POSITIONS, self.recipe.streams)
        for bridge in self.bridges.values():
            bridge.eval()
        for part in np.array_split(np.arange(HELD_OUT), -(-HELD_OUT // self.recipe.batch)):
            features = self.held_out.of(part)
            students = [
                hidden
                for plan, bridge in self.bridges.items()
                for hidden in student_streams(self.teacher, plan, bridge, features, count)
            ]
            tally = score(self.teacher, features, students, None, [1] * count)
            total = tally if total is None else total + tally
        assert total is not None
        return {plan: report(sums)["top1"] for plan, sums in zip(self.bridges, total, strict=True)}

    def begin(self, start: Mapping[SkipPlan, Mapping[str, np.ndarray]] | None = None) -> None:
        """Take up what the newest checkpoint holds, or begin with the tensors in `start`, by default least squares, and
        measure their agreement.

        Raises:
            SkipSpecError: the checkpoint is of another run.
        """
        if found := self.checkpoints.latest():
            self.first_step, tensors, extra = found
            self.before = extra["before"]
            self.trainer.load_state({name: torch.from_numpy(value) for name, value in tensors.items()})
            self.world.note(f"going on behind step {self.first_step} of {self.folder}")
            if self.world.first:
                self.metrics.keep(self.first_step)
            return
        if self.world.first:
            self.metrics.keep(0)  # of a run that ended before its first checkpoint
        if start is None:
            start = least_squares(self.plans, self.training, self.recipe.batch)
        for plan, tensors in start.items():
            self.bridges[plan].start_from(tensors)
        self.before = {plan.name: shares for plan, shares in self.agreement().items()}

    def go(self, checkpoint_seconds: float) -> None:
        """All steps that are left, with metrics and checkpoints.

        Raises:
            SkipSpecError: a loss is not finite, or a checkpoint can't be written.
            KeyboardInterrupt: asked to stop, after a checkpoint.
        """
        first, saved = self.first_step, time.monotonic()
        tokens = self.recipe.batch * self.recipe.accumulate * self.world.size * self.training.length
        with self._signals(), self.world.bar(self.recipe.steps * tokens, "training, tokens", first * tokens) as bar:
            for number in range(first, self.recipe.steps):
                results = self.trainer.step(number)
                losses = [loss for result in results.values() for loss in result["loss"]]
                if not np.isfinite(losses).all():
                    raise SkipSpecError(
                        f"The loss of step {number} is NaN or infinite; give a smaller --lr ({self.recipe.lr:g} now) "
                        f"or --dtype float32, and another --out. Checkpoints up to there are in {self.folder}."
                    )
                if self.world.first:
                    now = {"step": number, "lr": self.recipe.rate(number), "time": round(time.time(), 2)}
                    self.metrics.add(now | results)
                bar.update(tokens)
                bar.set_postfix({p: " ".join(f"{x:.2f}" for x in result["top1"]) for p, result in results.items()})
                done = number + 1
                asked = self.world.any(self.stopping)  # once: a signal behind this line waits for the next step
                due = self.world.any(time.monotonic() - saved > checkpoint_seconds)
                if done == self.recipe.steps or asked or due:
                    self._save(done)
                    saved = time.monotonic()
                if asked:
                    self.world.wait()  # a process that ends first makes torchrun end the one that saves
                    self.world.note(f"stopped behind step {done}; the same command goes on from there")
                    raise KeyboardInterrupt

    def _save(self, done: int) -> None:
        if self.world.first:
            state = {name: value.detach().cpu().numpy() for name, value in self.trainer.state().items()}
            self.checkpoints.save(done, state, {"before": self.before})

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end the run behind the step that is under way."""

        def stop(*_: Any) -> None:
            self.stopping = True

        before = {kind: signal.signal(kind, stop) for kind in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def sidecar_of(run: Run, plan: SkipPlan, name: str, made_by: dict[str, Any], agreement: list[float]) -> Sidecar:
    """The bridge of one plan as it is now."""
    return Sidecar(
        base=run.teacher.base(name),
        head=len(plan.before),
        tail=len(plan.after),
        tensors=run.bridges[plan].tensors(),
        kind="hvc-mlp" if run.bridges[plan].rank else "hvc",
        made_by=made_by,
        acceptance_by_position=tuple(round(share, 4) for share in agreement),
    )
