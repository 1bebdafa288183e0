"""Which head scores the drafts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.fingerprint import probe
from mlx_skipspec.head_files import FILES, HeadFile
from mlx_skipspec.heads import Clusters, DenseHead, Finder, Head, Shortlist, Subset
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.target import Target

HEADS = ("auto", "dense", *FILES)
UNKNOWN = (0.5, 0.5, 0.5)  # acceptance where the sidecar says none


def choose_head(
    target: Target, choice: str = "auto", sidecar: Sidecar | None = None, sampler: Sampler = GREEDY
) -> tuple[Head, str]:
    """The head people asked for, and its name; never another one in silence.

    "auto" is the one that promised the most tokens per second when the sidecar's heads were measured, dense included;
    dense if there is none.

    Raises:
        SkipSpecError: the sidecar has no such head, or it is another model's or damaged.
    """
    heads = sidecar.heads if sidecar is not None else {}
    if choice == "auto":
        choice = fastest(heads, [alpha or 0.0 for alpha in (sidecar and sidecar.acceptance_by_position) or UNKNOWN])
    if choice == "dense":
        return DenseHead(target.logits, sampler), "dense"
    if choice not in heads:
        raise SkipSpecError(
            f"There is no {choice} head in the sidecar; it has {', '.join(['dense', *heads])}. Build it: "
            f"mlx-skipspec build-head --kind {choice} --model MODEL --out SIDECAR."
        )
    return Shortlist(target, open_finder(target, heads[choice]), sampler), choice


def fastest(heads: Mapping[str, HeadFile], acceptance: list[float]) -> str:
    """The kind of head whose measurements promise the most tokens per second; each is compared with the dense head as
    it was when that one was measured, so figures of different days are never mixed."""
    gains = {"dense": 1.0}
    for kind, head in heads.items():
        dense = head.measured.rate(acceptance, dense=True)
        gains[kind] = head.measured.rate(acceptance) / dense if dense else 0.0
    return max(gains, key=lambda kind: gains[kind])


def open_finder(target: Target, head: HeadFile) -> Finder:
    """Read a head's file.

    Raises:
        SkipSpecError: it indexes another head, is damaged, or holds what cannot be a head of this model.
    """
    head.check(head_fingerprint(target))
    return {"clusters": _clusters, "subset": _subset, "ann": _nearest}[head.kind](target, head)


def _clusters(target: Target, head: HeadFile) -> Finder:
    found = head.tensors()
    head.need(
        {name: value.ndim for name, value in found.items()} == {"members": 2, "centres": 2, "bias": 1}, "clusters"
    )
    members, centres, bias = found["members"], found["centres"], found["bias"]
    count = len(members)
    head.need(are_ids(members, target.vocab_size), f"ids of tokens below {target.vocab_size}")
    head.need(centres.shape == (count, target.hidden_size), f"{count} centres of {target.hidden_size} numbers")
    head.need(bias.shape == (count,), f"a bias for each of {count} clusters")
    head.need(bool(np.isfinite(centres).all() and np.isfinite(bias).all()), "finite numbers")
    probes = head.count("probes", count)
    made = Clusters(mx.array(members), mx.array(centres, target.dtype), mx.array(bias, target.dtype), probes)
    mx.eval(made.members, made.clusters.parameters())
    return made


def _subset(target: Target, head: HeadFile) -> Finder:
    rows = head.tensors().get("rows", np.zeros(0))
    head.need(rows.ndim == 1 and are_ids(rows, target.vocab_size), f"ids of tokens below {target.vocab_size}")
    return Subset(rows, target.vocab_size)


def _nearest(target: Target, head: HeadFile) -> Finder:
    from mlx_skipspec.heads.ann import Nearest

    candidates, scale = head.count("candidates", target.vocab_size), head.settings.get("scale", ())
    given = isinstance(scale, list) and len(scale) == target.hidden_size
    positive = given and all(isinstance(value, float) and 0 < value < math.inf for value in scale)
    head.need(positive, f"a scale of {target.hidden_size} positive numbers")
    return Nearest.open(head.path, np.array(scale), target.vocab_size, candidates)


def are_ids(values: np.ndarray, vocab_size: int) -> bool:
    """A row of any other number would be other memory."""
    whole = np.issubdtype(values.dtype, np.integer)
    return bool(whole and values.size and values.min() >= 0 and values.max() < vocab_size)


def head_fingerprint(target: Target) -> tuple[float, ...]:
    """What an index knows this model's head by."""
    return probe(lambda rows: np.array(target.head_rows(mx.array(rows)).astype(mx.float32)), target.vocab_size)
