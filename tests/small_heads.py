"""Draft heads over tiny models, built as they are for real ones, that miss now and then."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mlx_skipspec.convert import heads as building
from mlx_skipspec.convert.clusters import EqualClusters
from mlx_skipspec.heads import Clusters, Finder, Shortlist, Subset
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.target import Target

KINDS = ("clusters", "subset", "ann")


def states(target: Target, count: int = 200, seed: int = 0) -> np.ndarray:  # (count, D)
    """Normed states of random tokens."""
    ids = mx.random.randint(3, target.vocab_size, (count,), key=mx.random.key(seed))
    hidden = target.run(target.embed(ids), target.layers, target.make_kv())
    return np.array(target.normed(hidden)[0].astype(mx.float32))


def rows_of(target: Target) -> building.RowsOf:
    return lambda ids: target.head_rows(mx.array(ids))


def small_finder(kind: str, target: Target) -> Finder:
    if kind == "clusters":
        made = EqualClusters(rows_of(target), target.vocab_size, states(target), size=7)
        made.fit()
        bias = mx.array(made.teach(states(target)))
        return Clusters(mx.array(made.members), mx.array(made.centres), bias, probes=3)
    if kind == "subset":
        return Subset(np.arange(0, target.vocab_size, 3), target.vocab_size)
    from mlx_skipspec.heads.ann import Nearest

    index, settings = building.graph(rows_of(target), target.vocab_size, states(target), threads=1)
    return Nearest(index, np.array(settings["scale"]), target.vocab_size, candidates=5)


def small_head(kind: str, target: Target, sampler: Sampler = GREEDY) -> Shortlist:
    return Shortlist(target, small_finder(kind, target), sampler)
