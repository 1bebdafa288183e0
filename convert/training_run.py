"""A training run: features, start, steps, held-out agreement, checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.convert.checkpoints import Checkpoints
from mlx_skipspec.convert.closed_form import NormalEquations
from mlx_skipspec.convert.feature_files import FeatureFiles
from mlx_skipspec.convert.hvc_torch import EPS, HVC
from mlx_skipspec.convert.objective import TOP
from mlx_skipspec.convert.teacher import Features, Teacher
from mlx_skipspec.convert.training import Recipe, Trainer, report, score, student_streams
from mlx_skipspec.convert.world import World
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.plan import SkipPlan

HELD_OUT = 16  # windows kept from training, to measure agreement on
POSITIONS = 3  # draft steps agreement is measured at, whatever is trained
START_WINDOWS = 400  # for the least-squares start
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
        self.held_out, self.training = windows[:HELD_OUT], windows[HELD_OUT:]
        self.held_out_scored, self.scored = torch.from_numpy(scored).split([HELD_OUT, len(scored) - HELD_OUT])
        ends = {border for plan in plans for border in (plan.skipped.start, plan.skipped.stop)}
        self.borders, self.tail = sorted(ends - {teacher.depth}), max(len(plan.after) for plan in plans)
        self.folder, self.about, self.features_folder = folder, about, features
        self.files: FeatureFiles | None = None
        torch.manual_seed(recipe.seed)  # of the MLP's first numbers; all else is drawn by step
        self.bridges = {plan: HVC(teacher.hidden_size, rank, recipe.dropout).to(teacher.device) for plan in plans}
        self.trainer = Trainer(teacher, self.bridges, self.training, scored[HELD_OUT:], self.features, recipe, world)
        self.checkpoints = Checkpoints(folder, about | {"recipe": asdict(recipe), "rank": rank, "world": world.size})
        self.first_step, self.before = 0, {}
        self.stopping = False

    def features(self, at: Sequence[int]) -> Features:
        """Of training windows, from disk or from the teacher."""
        if self.files is not None:
            scored = self.scored[list(at)].to(self.teacher.device)
            return Features.of(self.files.read(at), scored, self.teacher.model.dtype)
        return self._features(self.training[list(at)], self.scored[list(at)])

    def _features(self, windows: np.ndarray, scored: torch.Tensor) -> Features:
        top = TOP if self.recipe.sampled or self.features_folder else 0
        ids = torch.from_numpy(windows.astype(np.int64))
        return self.teacher.features(ids, scored, self.borders, self.tail, top)

    def read_ahead(self) -> None:
        """Put the features of all training windows on disk, each process its share."""
        if self.features_folder is None:
            return
        count, length = self.training.shape
        one = self._features(self.training[:1], self.scored[:1]).arrays()
        sizes = {name: value.shape[1:] for name, value in one.items()}
        about = {"model": self.about["base"], "text": self.about["text"]}
        if self.world.first:
            FeatureFiles(self.features_folder, about, sizes, count)
        self.world.wait()
        self.files = FeatureFiles(self.features_folder, about, sizes, count)
        todo = self.files.missing()
        self.world.wait()  # before anybody writes
        todo = todo[self.world.rank :: self.world.size]
        with self._bar(len(todo) * length, "reading, tokens") as bar:
            for start in range(0, len(todo), self.recipe.batch):
                at = todo[start : start + self.recipe.batch]
                self.files.write(at, self._features(self.training[at], self.scored[at]).arrays())
                bar.update(len(at) * length)
        self.world.wait()

    def least_squares(self) -> dict[SkipPlan, dict[str, np.ndarray]]:
        """Every plan's closed-form start, on the first windows."""
        size = self.teacher.hidden_size
        sums = {plan: torch.zeros(2 * size, 3 * size, dtype=torch.float64) for plan in self.plans}
        mine = range(min(START_WINDOWS, len(self.training)))[self.world.rank :: self.world.size]
        with self._bar(len(mine) * self.training.shape[1], "least squares, tokens") as bar:
            for start in range(0, len(mine), self.recipe.batch):
                at = mine[start : start + self.recipe.batch]
                features = self.features(at)
                last = _layer_norm(features.last)[:, :-1]
                for plan in self.plans:
                    x, entering = features.x[plan.skipped.start], features.x.get(plan.skipped.stop, features.last)
                    f = torch.cat([_layer_norm(x)[:, 1:], last], dim=-1).flatten(0, 1)
                    gained = (entering - x)[:, 1:].float().flatten(0, 1)
                    sums[plan] += (f.T @ torch.cat([f, gained], dim=-1)).double().cpu()
                bar.update(len(at) * self.training.shape[1])
        found = {}
        for plan, total in sums.items():
            on_device = total.to(self.teacher.device)
            self.world.sum([on_device])
            equations = NormalEquations(size)
            total = on_device.cpu()
            equations.add(total[:, : 2 * size].numpy(), total[:, 2 * size :].numpy())
            found[plan] = equations.solve()
        return found

    @torch.no_grad()
    def agreement(self) -> dict[SkipPlan, list[float]]:
        """Conditional top-1 agreement by draft position on the held-out windows, over the whole vocabulary."""
        total, count = None, max(POSITIONS, self.recipe.streams)
        for bridge in self.bridges.values():
            bridge.eval()
        for part in np.array_split(np.arange(HELD_OUT), -(-HELD_OUT // self.recipe.batch)):
            features = self._features(self.held_out[part], self.held_out_scored[part])
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
            if self.world.first:
                note(f"going on behind step {self.first_step} of {self.folder}")
                self._keep_metrics(self.first_step)
            return
        for plan, tensors in (self.least_squares() if start is None else start).items():
            self.bridges[plan].start_from(tensors)
        self.before = {plan.name: shares for plan, shares in self.agreement().items()}

    def go(self, checkpoint_seconds: float) -> None:
        """All steps that are left, with metrics and checkpoints.

        Raises:
            SkipSpecError: a loss is not finite, or a checkpoint can't be written.
            KeyboardInterrupt: asked to stop, after a checkpoint.
        """
        first, saved = self.first_step, time.monotonic()
        tokens = self.recipe.batch * self.recipe.accumulate * self.world.size * self.training.shape[1]
        with self._signals(), self._bar(self.recipe.steps * tokens, "training, tokens", first * tokens) as bar:
            for number in range(first, self.recipe.steps):
                results = self.trainer.step(number)
                losses = [loss for result in results.values() for loss in result["loss"]]
                if not np.isfinite(losses).all():
                    raise SkipSpecError(
                        f"The loss of step {number} is NaN or infinite; give a smaller --lr ({self.recipe.lr:g} now) "
                        f"or --dtype float32, and another --out. Checkpoints up to there are in {self.folder}."
                    )
                self._note(number, results)
                bar.update(tokens)
                bar.set_postfix({p: " ".join(f"{x:.2f}" for x in result["top1"]) for p, result in results.items()})
                done = number + 1
                stopping = self.world.any(self.stopping or (time.monotonic() - saved > checkpoint_seconds))
                if done == self.recipe.steps or stopping:
                    self._save(done)
                    saved = time.monotonic()
                if self.world.any(self.stopping):
                    if self.world.first:
                        note(f"stopped behind step {done}; the same command goes on from there")
                    raise KeyboardInterrupt

    def _save(self, done: int) -> None:
        if self.world.first:
            state = {name: value.detach().cpu().numpy() for name, value in self.trainer.state().items()}
            self.checkpoints.save(done, state, {"before": self.before})

    def _note(self, number: int, results: dict[str, Any]) -> None:
        """A line of metrics: step, rate, time (Unix), and by plan the loss and agreement of each draft position."""
        if not self.world.first:
            return
        line = {"step": number, "lr": self.recipe.rate(number), "time": round(time.time(), 2), **results}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise SkipSpecError(
                f"Writing {self.folder / METRICS} failed ({error.strerror}); make room and give the command again."
            ) from error

    def _keep_metrics(self, step: int) -> None:
        """Drop the lines of steps that will be taken again."""
        file = self.folder / METRICS
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
        file.write_text("".join(itertools.islice(lines, step)), encoding="utf-8")

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

    def _bar(self, total: int, name: str, initial: int = 0) -> Any:
        disable = None if self.world.first else True
        return tqdm(total=total, initial=initial, desc=name, unit="tok", unit_scale=True, disable=disable)


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


def note(line: str) -> None:
    """One line to the person, beside the progress bar."""
    tqdm.write(line, file=sys.stderr)


def _layer_norm(h: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(h.float(), h.shape[-1:], eps=EPS)
