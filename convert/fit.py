"""A bridge made on the user's own machine: the closed-form start, then unrolled training for some minutes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tqdm import tqdm

from mlx_skipspec.api import check_ids
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.convert.checkpoints import Checkpoints
from mlx_skipspec.convert.closed_form import RIDGE
from mlx_skipspec.convert.closed_form_mlx import LeastSquares
from mlx_skipspec.convert.corpus import check_files, windows
from mlx_skipspec.convert.feature_files import FeatureFiles
from mlx_skipspec.convert.fit_training import FitTraining, features_of
from mlx_skipspec.convert.head_rows import most_frequent
from mlx_skipspec.convert.objective import STREAMS
from mlx_skipspec.convert.packing import Tokens
from mlx_skipspec.decode import decode
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.folders import check_new
from mlx_skipspec.hvc import HVC
from mlx_skipspec.loading import base_of, read_weights
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.stats import Stats
from mlx_skipspec.target import Target

WINDOW = 256  # tokens
HELD_OUT = 12  # windows kept from the fit, to measure acceptance on


def check_request(out: Path, tokens: int, files: Sequence[Path] = ()) -> None:
    """Refuse what can't be done with any model, before one is fetched or loaded.

    Raises:
        SkipSpecError: `out` exists or can't be made, too few tokens, or a file that is none.
    """
    check_new(out)
    if tokens < WINDOW:
        raise SkipSpecError(f"--tokens {tokens} is less than one window; need at least {WINDOW}.")
    check_files(files)


class Fit:
    """One fit: its text, and the folder beside `out` where a training that is stopped can be taken up again.

    Raises:
        SkipSpecError: a file is no text, or there is too little of it.
    """

    def __init__(
        self, target: Target, tokenizer: Any, plan: SkipPlan, out: Path, files: Sequence[Path], tokens: int
    ) -> None:
        self.target, self.plan, self.out = target, plan, out
        self.text = [file.name for file in files] or ["python-help"]
        found = list(itertools.islice(windows(files, tokenizer, WINDOW), HELD_OUT + -(-tokens // WINDOW)))
        for window in found:
            check_ids(target, window.ids)
        if len(found) <= HELD_OUT:
            raise SkipSpecError(
                f"The text holds only {len(found)} windows of {WINDOW} tokens; need more than {HELD_OUT}."
            )
        self.held_out, self.training = found[:HELD_OUT], found[HELD_OUT:]
        self.folder = out.with_name(f"{out.name}.training")
        self.about = {
            "model": list(base_of(target).fingerprint[:8]),
            "plan": plan.name,
            "text": hashlib.sha256(repr(found).encode()).hexdigest()[:16],
        }

    def least_squares(self, files: FeatureFiles | None = None) -> dict[str, np.ndarray]:
        """The closed-form start on the training windows, whose features go into `files`."""
        sums = LeastSquares(self.target, self.plan)
        with tqdm(total=len(self.training) * WINDOW, unit="tok", desc="reading", disable=None) as bar:
            for i, window in enumerate(self.training):
                features = sums.add(window.ids)
                if files is not None:
                    files.write([i], as_numpy(features))
                bar.update(WINDOW)
        return sums.solve()

    def train(self, minutes: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
        """Closed-form start, best bridge and steps taken; Ctrl-C in the training ends it early.

        Raises:
            SkipSpecError: no room for features or checkpoints, or a loss that is not finite.
        """
        checkpoints = Checkpoints(self.folder, self.about)
        found = checkpoints.latest()
        sizes = {name: value.shape for name, value in self._features(self.training[0].ids).items()}
        files = FeatureFiles(self.folder / "features", self.about, sizes, len(self.training))
        if found is not None and not files.missing().size:
            start = {n.removeprefix("start."): v for n, v in found[1].items() if n.startswith("start.")}
        else:
            start = self.least_squares(files)
        training = FitTraining(
            self.target,
            self.plan,
            HVC.from_tensors(start),
            files.read,
            np.array([window.scored for window in self.training]),
            [self._held_out(window) for window in self.held_out],
            most_frequent(np.array([window.ids for window in self.training]), self.target.vocab_size),
            checkpoints,
            start,
        )
        with tqdm(total=round(60 * minutes), unit="s", desc="training", disable=None) as bar:

            def progress(seconds: float, words: str) -> None:
                bar.update(round(seconds) - bar.n)
                bar.set_postfix_str(words)

            try:
                training.train(60 * minutes, progress)
            except KeyboardInterrupt:
                tqdm.write("stopped: the best bridge so far is kept", file=sys.stderr)
        return start, {name: np.array(value) for name, value in training.best.items()}, training.progress.step

    def _features(self, window: Sequence[int]) -> dict[str, mx.array]:
        features = features_of(self.target, self.plan, window)
        del features["entering"]
        mx.eval(features)
        return features

    def _held_out(self, window: Tokens) -> tuple[dict[str, mx.array], np.ndarray]:
        features = {name: value[None] for name, value in self._features(window.ids).items()}
        return features, np.array([window.scored])

    def clean_up(self) -> None:
        """Remove what the training kept, and its folder if nobody else has put something in it."""
        for kept in (self.folder / "features", *self.folder.glob("step-*"), *self.folder.glob(".step-*")):
            shutil.rmtree(kept, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def measured(self, tensors: dict[str, np.ndarray]) -> list[float | None]:
        """Acceptance by draft position on the held-out windows, in the real loop."""
        drafter = LayerSkip(self.plan, HVC.from_tensors(tensors, self.target.dtype))
        begins = [_first_scored(window) for window in self.held_out]
        prompts = [w.ids[: 1 + at] for w, at in zip(self.held_out, begins, strict=True) if at is not None]
        return measure(self.target, drafter, prompts).acceptance_by_position()


def fit(
    target: Target,
    tokenizer: Any,
    plan: SkipPlan,
    out: Path,
    *,
    files: Sequence[Path] = (),
    tokens: int = 60_000,
    minutes: float = 0.0,
    name: str = "",
) -> Sidecar:
    """Fit a bridge over `plan`'s gap on about `tokens` tokens of text, train it for `minutes`, and write the sidecar.

    A training that was stopped goes on when the same is asked for again; Ctrl-C keeps the best bridge so far.

    Raises:
        SkipSpecError: `out` exists or can't be written, a file is no text, there is too little of it, or the model's
            numbers are not finite.
    """
    check_request(out, tokens, files)
    here = Fit(target, tokenizer, plan, out, files, tokens)
    read_weights(target)
    made_by: dict[str, Any] = {
        "method": "least squares",
        "tokens": len(here.training) * (WINDOW - 1),
        "ridge": RIDGE,
        "text": here.text,
    }
    if minutes:
        try:
            start, tensors, steps = here.train(minutes)
        except BaseException:
            if not any(here.folder.glob("step-*")):  # nothing to take up again, so nothing is left
                here.clean_up()
            raise
        made_by |= {
            "method": "unrolled training from least squares",
            "streams": STREAMS,
            "steps": steps,
            "minutes": minutes,
            "start": {"acceptance_by_position": here.measured(start)},
        }
    else:
        tensors = here.least_squares()
    sidecar = Sidecar(
        base=base_of(target, name),
        head=len(plan.before),
        tail=len(plan.after),
        tensors=tensors,
        made_by=made_by,
        acceptance_by_position=tuple(here.measured(tensors)),
    )
    sidecar.save(out)
    if minutes:  # else what is there is not ours
        here.clean_up()
    return sidecar


def measure(target: Target, drafter: LayerSkip, prompts: Sequence[Sequence[int]], tokens: int = 48) -> Stats:
    """Acceptance in the real loop, greedy."""
    stats = Stats()
    for prompt in tqdm(prompts, unit="text", desc="measuring acceptance", disable=None):
        for step in decode(target, target.make_kv(), prompt, drafter=drafter, draft_tokens=3, max_tokens=tokens):
            stats.add(step)
    return stats


def _first_scored(window: Tokens) -> int | None:
    """Where acceptance is measured from: behind a quarter, so that there is something to go by."""
    return next((i for i in range(WINDOW // 4, WINDOW - 1) if window.scored[i]), None)


def as_numpy(features: dict[str, mx.array]) -> dict[str, np.ndarray]:
    """A window's features as a batch of one."""
    return {n: np.array(v if n == "top" else v.astype(mx.float32))[None] for n, v in features.items()}
