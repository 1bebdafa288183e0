"""What a draft head is built and measured on: a model's hidden states along a text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np
from tqdm import tqdm

from mlx_skipspec.api import check_ids
from mlx_skipspec.convert.corpus import windows
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.head_measured import Measured
from mlx_skipspec.heads import Head
from mlx_skipspec.target import Target

WINDOW = 256  # tokens
HELD_OUT, CALIBRATING, TRAINING = 8, 8, 32  # windows to measure on, to choose probes by, to build on at least
TRAINING_MOST = 96  # more find more: on SmolLM2 clusters of 96 windows .972 of the best rows, of 32 .954
COUNTED = 1024  # windows looked at: their tokens are counted, and of them those above are taken
QUERIES, REPEATS = 512, 7
LONGEST = 4  # tokens of a target pass that is timed


class HeadText:
    """The windows of a text, in random order, those to measure on first; hidden states of some, wherever a draft
    could stand: in conversations that is where the model answers.

    Raises:
        SkipSpecError: a file is no text, or there is too little of it.
    """

    def __init__(self, target: Target, tokenizer: Any, files: Sequence[Path]) -> None:
        need = HELD_OUT + CALIBRATING + TRAINING
        found = list(itertools.islice(windows(files, tokenizer, WINDOW), COUNTED))
        if len(found) < need:
            raise SkipSpecError(
                f"The text holds only {len(found)} windows of {WINDOW} tokens; need {need}. Give more --text."
            )
        for window in found:
            check_ids(target, window.ids)
        found = [found[i] for i in np.random.default_rng(0).permutation(len(found))]
        read = found[: HELD_OUT + CALIBRATING + TRAINING_MOST]
        self.target, self.windows = target, [window.ids for window in found]
        self.places = [np.flatnonzero(window.scored) for window in read]
        self.hidden = []  # (n, D) of each window: what leaves the last layer at its places
        for window, places in zip(
            tqdm(self.windows[: len(read)], unit="window", desc="reading", disable=None), self.places, strict=True
        ):
            states = target.run(target.embed(mx.array(window)), target.layers, target.make_kv())[0, mx.array(places)]
            mx.eval(states)
            self.hidden.append(states)

    @property
    def training(self) -> np.ndarray:  # (n, D)
        """Normed states to build on, fp32."""
        return self._normed(HELD_OUT + CALIBRATING, None)

    @property
    def calibrating(self) -> np.ndarray:  # (n, D)
        """Normed states to choose probes by, of other windows."""
        return self._normed(HELD_OUT, HELD_OUT + CALIBRATING)

    @property
    def counted(self) -> np.ndarray:  # (windows, L)
        """Tokens that may be counted: all but those of the windows measured on."""
        return np.array(self.windows[HELD_OUT:])

    def queries(self) -> list[tuple[mx.array, list[int]]]:
        """Held-out hidden states (1, 1, D), each with the tokens up to it."""
        found = [
            (self.hidden[window][None, i : i + 1], list(self.windows[window][: place + 1]))
            for window in range(HELD_OUT)
            for i, place in enumerate(self.places[window])
        ]
        return found[:: max(1, len(found) // QUERIES)]

    def _normed(self, start: int, stop: int | None) -> np.ndarray:
        states = mx.concatenate(self.hidden[start:stop])
        normed = np.array(self.target.normed(states[None])[0].astype(mx.float32))
        if not np.isfinite(normed).all():
            raise SkipSpecError("The model gives NaN or infinite hidden states; load it with --dtype float32.")
        return normed


def measure(head: Head, dense: Head, queries: Sequence[tuple[mx.array, list[int]]], build_seconds: float) -> Measured:
    """Recall@1 against the dense head, and the time of a choice; the two in turn, each evaluated by itself."""
    agreed = 0
    times: tuple[list[float], list[float]] = [], []
    for hidden, context in tqdm(queries, unit="query", desc="measuring", disable=None):
        chosen = []
        for scorer, seconds in zip((dense, head), times, strict=True):
            started = time.perf_counter()
            scorer.read(context)
            token, _ = scorer(hidden, len(context))
            mx.eval(token)
            seconds.append(time.perf_counter() - started)
            chosen.append(token.item())
        agreed += chosen[0] == chosen[1]
    return Measured(agreed / len(queries), len(queries), median(times[1]), median(times[0]), build_seconds)


def measure_steps(target: Target, drafter: LayerSkip, context: Sequence[int]) -> tuple[float, tuple[float, ...]]:
    """Seconds of a draft step without its head, and of target passes over 1 … LONGEST tokens behind `context`."""
    kv = target.make_kv()
    drafter.begin(target, kv)
    target.prefill(mx.array(list(context)), kv)

    def seconds(run: Callable[[], mx.array]) -> float:
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            mx.eval(run())
            times.append(time.perf_counter() - started)
            kv.rewind_to(len(context))
        return median(times)

    def one_pass(tokens: mx.array) -> mx.array:
        return target(tokens, kv)[0]

    tokens = mx.array(list(context[:LONGEST]))
    layers = seconds(lambda: drafter.step(tokens[:1], drafter.r))
    return layers, tuple(seconds(partial(one_pass, tokens[:n])) for n in range(1, LONGEST + 1))
