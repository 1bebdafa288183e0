"""A first bridge without epochs or GPU: the closed-form least-squares start of HVC.

With both LayerNorms at scale 1 and shift 0, the W that best maps f_t = [LN(x_t); LN(r_t)] to what the gap adds,
g_t = (hidden entering the layer behind the gap) - x_t, is the solution of a linear system in two running sums:

    (Σ f fᵀ + λI) Wᵀ = Σ f gᵀ
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tqdm import tqdm

from mlx_skipspec.api import check_ids
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.convert.corpus import check_files, windows
from mlx_skipspec.decode import decode
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.folders import check_new
from mlx_skipspec.hvc import EPS, HVC
from mlx_skipspec.loading import base_of, read_weights
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.stats import Stats
from mlx_skipspec.target import Target

WINDOW = 256  # tokens
RIDGE = 1e-4  # λ, as a share of the mean diagonal of Σ f fᵀ
HELD_OUT = 8  # windows kept from the fit, to measure acceptance on


class LeastSquares:
    """The two running sums, in float64 on the host (MLX has no float64 on a GPU)."""

    def __init__(self, target: Target, plan: SkipPlan) -> None:
        size = target.hidden_size
        self.target, self.plan = target, plan
        self.ff = np.zeros((2 * size, 2 * size))
        self.fg = np.zeros((2 * size, size))
        self.tokens = 0

    def add(self, window: Sequence[int]) -> None:
        """Let the target read a window and add its positions, all but the first, which has no r."""
        target, kv = self.target, self.target.make_kv()
        x = target.run(target.embed(mx.array(window)), self.plan.before, kv)
        across = target.run(x, self.plan.skipped, kv)
        last = target.run(across, self.plan.after, kv)
        features = mx.concatenate([_layer_norm(x[0, 1:]), _layer_norm(last[0, :-1])], axis=-1)
        gained = (across - x)[0, 1:].astype(mx.float32)
        ff, fg = features.T @ features, features.T @ gained
        self.ff += np.array(ff, dtype=np.float64)
        self.fg += np.array(fg, dtype=np.float64)
        self.tokens += len(window) - 1

    def solve(self) -> dict[str, np.ndarray]:
        """The bridge's tensors.

        Raises:
            SkipSpecError: the model's hidden states were not finite.
        """
        size = self.target.hidden_size
        if not (np.isfinite(self.ff).all() and np.isfinite(self.fg).all()):
            raise SkipSpecError(
                "The model gave NaN or infinite hidden states; load it with --dtype float32 and fit again."
            )
        ridge = RIDGE * np.trace(self.ff) / len(self.ff)
        w = np.linalg.solve(self.ff + ridge * np.eye(2 * size), self.fg)
        ones, zeros = np.ones(size), np.zeros(size)
        return {
            "ln_gap.weight": ones,
            "ln_gap.bias": zeros,
            "ln_prev.weight": ones,
            "ln_prev.bias": zeros,
            "proj.weight": np.ascontiguousarray(w.T),
        }


def check_request(out: Path, tokens: int, files: Sequence[Path] = ()) -> None:
    """Refuse what can't be done with any model, before one is fetched or loaded.

    Raises:
        SkipSpecError: `out` exists or can't be made, too few tokens, or a file that is none.
    """
    check_new(out)
    if tokens < WINDOW:
        raise SkipSpecError(f"--tokens {tokens} is less than one window; need at least {WINDOW}.")
    check_files(files)


def fit(
    target: Target,
    tokenizer: Any,
    plan: SkipPlan,
    out: Path,
    *,
    files: Sequence[Path] = (),
    tokens: int = 60_000,
    name: str = "",
) -> Sidecar:
    """Fit a bridge over `plan`'s gap on about `tokens` tokens of text and write the sidecar folder `out`.

    Raises:
        SkipSpecError: `out` exists or can't be written, a file is no text, or there is too little of it.
    """
    check_request(out, tokens, files)
    source = windows(files, tokenizer, WINDOW)
    held_out = list(itertools.islice(source, HELD_OUT))
    for window in held_out:
        check_ids(target, window)
    read_weights(target)
    sums = LeastSquares(target, plan)
    with tqdm(total=tokens, unit="tok", desc=f"reading, plan {plan.name}", disable=None) as bar:
        for window in itertools.islice(source, -(-tokens // WINDOW)):
            check_ids(target, window)
            sums.add(window)
            bar.update(WINDOW)
    if not sums.tokens:
        raise SkipSpecError(
            f"The text holds only {len(held_out)} windows of {WINDOW} tokens; need more than {HELD_OUT}."
        )
    tensors = sums.solve()
    bridge = HVC.from_tensors(tensors, target.dtype)
    stats = measure(target, LayerSkip(plan, bridge), [window[: WINDOW // 4] for window in held_out])
    sidecar = Sidecar(
        base=base_of(target, name),
        head=len(plan.before),
        tail=len(plan.after),
        tensors=tensors,
        made_by={
            "method": "least squares",
            "tokens": sums.tokens,
            "ridge": RIDGE,
            "text": [f.name for f in files] or ["python-help"],
        },
        acceptance_by_position=tuple(stats.acceptance_by_position()),
    )
    sidecar.save(out)
    return sidecar


def measure(target: Target, drafter: LayerSkip, prompts: Sequence[Sequence[int]], tokens: int = 48) -> Stats:
    """Acceptance in the real loop, greedy."""
    stats = Stats()
    for prompt in tqdm(prompts, unit="text", desc="measuring acceptance", disable=None):
        for step in decode(target, target.make_kv(), prompt, drafter=drafter, draft_tokens=3, max_tokens=tokens):
            stats.add(step)
    return stats


def _layer_norm(x: mx.array) -> mx.array:
    return mx.fast.layer_norm(x.astype(mx.float32), None, None, EPS)
