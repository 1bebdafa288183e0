"""Equal-size k-means over the rows of a head, in the metric its logits see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from tqdm import tqdm

from mlx_skipspec.convert.assignment import admitted, first_with_room, largest_in_each, nearest

SIZE = 64  # rows of a cluster
PASSES = 10
CHOICES = 8  # clusters a row ranks at a time
CHUNK = 1 << 23  # scores, or numbers of rows, held at a time
RIDGE = 1.0  # of the states' mean variance, added in every direction: a few texts say little of most
EPOCHS, BATCH, RATE, TEMPERATURE = 3, 128, 3e-3, 6.0  # of teaching; the rate in units of the centres' numbers
RECALL, SHARE = 0.985, 0.07  # what the probes should reach, and the most they may cost: rows scored, of all rows

RowsOf = Callable[[np.ndarray], mx.array]  # (n,) ids -> (n, D)


class EqualClusters:
    """C = ⌈V / size⌉ clusters of `size` rows; fewer than `size` places, over all of them, stay empty.

    Rows are alike when their logits are: the variance of h·w - h·c is (w - c)ᵀ Σ (w - c), with Σ the covariance of
    hidden states h, so k-means in that metric finds the centres that say most about their rows' logits. (Spherical
    k-means, as in FlashHead, found far fewer of SmolLM2's tokens at equal cost: benchmarks/LOG.md.)

    Where more rows want a cluster than it holds, it takes those that would lose most by going to their next choice
    (their regret), and the others ask on; sizes are equal in every pass, so that centres fit what they stand for. Rows
    are read in pieces; no copy of the head is made.

    Args:
        rows: rows of the head by their ids.
        count: V, how many there are.
        states: (n, D) what leaves the final norm in front of the head.
        seed: of the rows the centres start at.
    """

    def __init__(self, rows: RowsOf, count: int, states: np.ndarray, size: int = SIZE, seed: int = 0) -> None:
        self.rows, self.count, self.size = rows, count, size
        self.metric = np.cov(states.T, bias=True, dtype=np.float32)
        self.metric += RIDGE * np.trace(self.metric) / len(self.metric) * np.eye(len(self.metric), dtype=np.float32)
        first = np.random.default_rng(seed).choice(count, -(-count // size), replace=False)
        self.centres = np.array(self._read(np.sort(first)))  # (C, D)
        self.owner = np.zeros(count, np.int64)  # the cluster of each row

    def fit(self) -> None:
        """Move rows and centres in turn."""
        with tqdm(total=PASSES * self.count, unit="row", desc="clustering", unit_scale=True, disable=None) as bar:
            for _ in range(PASSES):
                self._place(bar)
                self.centres = np.concatenate([mean for _, mean in self._clusters()])

    @property
    def members(self) -> np.ndarray:  # (C, size)
        """Row ids by cluster; an empty place repeats the cluster's first row."""
        order = np.argsort(self.owner, kind="stable")
        counts = np.bincount(self.owner, minlength=len(self.centres))
        place = np.arange(self.count) - np.repeat(np.cumsum(counts) - counts, counts)
        found = np.full((len(counts), self.size), -1, np.int32)
        found[self.owner[order], place] = order
        return np.where(found < 0, found[:, :1], found)

    def teach(self, states: np.ndarray) -> np.ndarray:  # (n, D) -> (C,)
        """Move the centres a little, so that h·c + b foretells the largest logit of each cluster; returns b.

        b starts as what that has above the centre's logit on average. Squared errors weigh as a cluster counts at
        a state: by a softmax over all clusters' largest logits, at a temperature at which dozens count.
        """
        best = self._best(states)
        bias = (best - self.centres @ states.T).mean(axis=1)
        h, wanted = mx.array(states), mx.array(best.T)
        weight = mx.softmax(wanted / TEMPERATURE, axis=-1)
        learned = {"centres": mx.array(self.centres), "bias": mx.array(bias)}
        optimizer = optim.Adam(RATE * float(np.sqrt((self.centres**2).mean())))

        def loss(learned: dict[str, mx.array], some: mx.array) -> mx.array:
            foretold = h[some] @ learned["centres"].T + learned["bias"]
            return ((foretold - wanted[some]) ** 2 * weight[some]).sum(axis=-1).mean()

        for epoch in range(EPOCHS):
            order = np.random.default_rng(epoch).permutation(len(states))
            for i in range(0, len(order), BATCH):
                learned = optimizer.apply_gradients(mx.grad(loss)(learned, mx.array(order[i : i + BATCH])), learned)
                mx.eval(learned, optimizer.state)
        self.centres = np.array(learned["centres"])
        return np.array(learned["bias"])

    def probes(self, bias: np.ndarray, states: np.ndarray) -> int:
        """The fewest that find RECALL of the best rows of `states` (n, D), as far as SHARE allows."""
        score, true = self.centres @ states.T + bias[:, None], self._best(states).argmax(axis=0)
        rank = (score > score[true, np.arange(len(true))]).sum(axis=0)
        wanted = 1 + int(np.quantile(rank, RECALL, method="higher"))
        most = int(SHARE * self.count - len(self.centres)) // self.size
        return min(wanted, max(most, 1), len(self.centres))

    def _best(self, states: np.ndarray) -> np.ndarray:  # (n, D) -> (C, n)
        """The largest logit in each cluster."""
        towards = mx.array(states.T)
        return np.concatenate([largest_in_each(rows, towards, self.size) for rows, _ in self._clusters()])

    def _place(self, bar: Any) -> None:
        """Give every row its cluster."""
        room = np.full(len(self.centres), self.size)
        waiting = np.arange(self.count)
        while waiting.size:  # first all rows, then those whose every choice was full
            choices, gains = self._ranked(waiting, np.flatnonzero(room), bar if waiting.size == self.count else None)
            while (asking := np.flatnonzero((room[choices] > 0).any(axis=1))).size:
                cluster, regret = first_with_room(choices[asking], gains[asking], room)
                taken = admitted(cluster, regret, room)
                self.owner[waiting[asking[taken]]] = cluster[taken]
                room -= np.bincount(cluster[taken], minlength=len(room))
                waiting, choices, gains = (np.delete(part, asking[taken], 0) for part in (waiting, choices, gains))

    def _ranked(self, ids: np.ndarray, clusters: np.ndarray, bar: Any) -> tuple[np.ndarray, np.ndarray]:
        """The nearest of `clusters` for each row, best first, and w·Σc - c·Σc/2, larger the nearer; (n, k) both."""
        centres = self.centres[clusters]
        seen = centres @ self.metric
        towards, offset = mx.array(seen.T), mx.array((seen * centres).sum(axis=1) / 2)
        step, found = max(1, CHUNK // max(seen.shape)), []
        for i in range(0, len(ids), step):
            some = ids[i : i + step]
            found.append(nearest(self._read(some), towards, offset, min(CHOICES, len(clusters))))
            if bar is not None:
                bar.update(len(some))
        best, gains = (np.concatenate(part) for part in zip(*found, strict=True))
        return clusters[best], gains

    def _clusters(self) -> Iterator[tuple[mx.array, np.ndarray]]:
        """Some clusters at a time: rows (n·size, D) and their means (n, D). A row in an empty place counts twice."""
        members, width = self.members, self.centres.shape[1]
        step = max(1, CHUNK // (self.size * width))
        for i in range(0, len(members), step):
            rows = self._read(members[i : i + step].ravel())
            yield rows, np.array(rows.reshape(-1, self.size, width).mean(axis=1))

    def _read(self, ids: np.ndarray) -> mx.array:  # (n,) -> (n, D)
        return self.rows(ids).astype(mx.float32)
