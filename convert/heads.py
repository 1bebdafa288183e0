"""Build a draft head for a model and put it into the model's sidecar, measured."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tqdm import tqdm
from usearch.index import Index

from mlx_skipspec.artifacts import Sidecar, attach
from mlx_skipspec.convert.clusters import EqualClusters, RowsOf
from mlx_skipspec.convert.head_rows import most_frequent
from mlx_skipspec.convert.head_text import HeadText, measure, measure_steps
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.folders import new_folder
from mlx_skipspec.head_choice import head_fingerprint, open_finder
from mlx_skipspec.head_files import FILES, HeadFile
from mlx_skipspec.head_measured import Measured
from mlx_skipspec.heads import DenseHead, Shortlist
from mlx_skipspec.heads.ann import lifted
from mlx_skipspec.hvc import HVC
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.target import Target

SHARE_OF_ROWS = 8  # a subset has every eighth row
CANDIDATES = 16  # rows an index names per query
CONNECTIVITY, EXPANSION = 16, 128  # of the index's graph, and of the search while it is built
AT_A_TIME = 4096  # rows

Made = tuple[dict[str, Any], Callable[[Path], Any]]  # settings, and how the file is written


def build_head(
    target: Target, tokenizer: Any, kind: str, sidecar: Sidecar, out: Path, files: Sequence[Path] = ()
) -> HeadFile:
    """Build a head of `kind` on a text, measure it on other windows of that text, and attach it to a sidecar.

    `out` is the folder of `sidecar`; where there is none yet, it becomes a copy that has this head.

    Raises:
        SkipSpecError: a file is no text or there is too little of it, or `out` cannot be written.
    """
    text = HeadText(target, tokenizer, files)
    started = time.perf_counter()
    settings, write = make(kind, target, text)
    try:
        with contextlib.ExitStack() as stack:
            place = out
            if not out.exists():
                place = stack.enter_context(new_folder(out))
                sidecar.write(place)
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place, prefix=".head."))) / FILES[kind]
            write(path)
            seconds = time.perf_counter() - started
            head = HeadFile.of(kind, path, head_fingerprint(target), settings, Measured(0.0, 0, 0.0, 0.0, seconds))
            head = replace(head, measured=_measured(target, text, head, sidecar))
            attach(place, head)
    except (OSError, SafetensorError) as error:
        raise SkipSpecError(
            f"Cannot write into {out} ({one_line(error)}); the sidecar is as it was. Make room or copy it elsewhere."
        ) from error
    return replace(head, path=out / FILES[kind])


def _measured(target: Target, text: HeadText, head: HeadFile, sidecar: Sidecar) -> Measured:
    """The very file, as it will be run."""
    scorer = Shortlist(target, open_finder(target, head))
    found = measure(scorer, DenseHead(target.logits), text.queries(), head.measured.build_seconds)
    plan = SkipPlan.gap(target.depth, sidecar.head, sidecar.tail)
    bridge = HVC.from_tensors(sidecar.tensors, target.dtype, target.hidden_size)
    layers, passes = measure_steps(target, LayerSkip(plan, bridge), text.windows[0])
    return replace(found, layers_seconds=layers, pass_seconds=passes)


def make(kind: str, target: Target, text: HeadText) -> Made:
    """A head of `kind`, and how it is written."""

    def rows(ids: np.ndarray) -> mx.array:
        return target.head_rows(mx.array(ids))

    if kind == "clusters":
        return clusters(rows, target.vocab_size, text.training, text.calibrating)
    if kind == "subset":
        return subset(text.counted, target.vocab_size)
    return index(rows, target.vocab_size, text.training)


def clusters(rows: RowsOf, count: int, training: np.ndarray, calibrating: np.ndarray) -> Made:
    """Clusters of `count` rows, and how many to probe; states (n, D) are normed."""
    made = EqualClusters(rows, count, training)
    made.fit()
    bias = made.teach(training[:: max(1, len(training) // 8192)])
    tensors = {"members": made.members, "centres": made.centres.astype(np.float16), "bias": bias}
    return {"probes": made.probes(bias, calibrating)}, lambda path: save_file(tensors, path)


def subset(windows: np.ndarray, vocab_size: int) -> Made:
    """The most frequent ids of a text; of those it never has the smallest, which tokenizers learn first."""
    frequent = np.sort(most_frequent(windows, vocab_size, max(1, vocab_size // SHARE_OF_ROWS))).astype(np.int32)
    return {}, lambda path: save_file({"rows": frequent}, path)


def index(rows: RowsOf, count: int, states: np.ndarray) -> Made:
    """usearch's graph over the rows, written to be mapped into memory."""
    made, settings = graph(rows, count, states)

    def write(path: Path) -> None:
        try:
            made.save(path)
        except RuntimeError as error:  # its word for a failed write
            raise OSError(None, str(error)) from error

    return settings, write


def graph(
    rows: RowsOf, count: int, states: np.ndarray, dtype: str = "f16", threads: int | None = None
) -> tuple[Index, dict[str, Any]]:
    """An index over the rows as heads/ann.py reads it, and its settings.

    It is built on `threads` (default: all). On several, which edges it gets depends on which thread came first; on one,
    the same rows always give the same graph.

    The scale is the spread of normed states (n, D), half of it their own, half their mean. The mean row is taken off,
    which moves all logits alike and leaves less to lift.
    """
    width, variance = states.shape[1], states.var(axis=0)
    scale = np.array([float(f"{value:.6g}") for value in np.sqrt(variance + variance.mean())])  # short in the manifest
    starts = range(0, count, AT_A_TIME)

    def read(start: int) -> np.ndarray:
        return np.array(rows(np.arange(start, min(start + AT_A_TIME, count))).astype(mx.float32))

    mean = sum(read(start).sum(axis=0) for start in starts) / count
    longest = max(float((((read(start) - mean) * scale) ** 2).sum(axis=1).max()) for start in starts)
    made = Index(ndim=lifted(width), metric="cos", dtype=dtype, connectivity=CONNECTIVITY, expansion_add=EXPANSION)
    threads = threads or os.cpu_count() or 1
    with tqdm(total=count, unit="row", desc="indexing", unit_scale=True, disable=None) as bar:
        for start in starts:
            block = (read(start) - mean) * scale
            one = np.zeros((len(block), made.ndim), np.float32)
            one[:, :width] = block
            one[:, width] = np.sqrt(np.maximum(longest - (block**2).sum(axis=1), 0))
            made.add(np.arange(start, start + len(block)), one / np.sqrt(longest), threads=threads)
            bar.update(len(block))
    return made, {"candidates": min(CANDIDATES, count), "scale": scale.tolist()}
