"""Rows near in angle, by usearch's graph index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
from usearch.index import Index

from mlx_skipspec.errors import SkipSpecError, one_line

EXPANSION = 512  # nodes of the graph looked at per query


class Nearest:
    """Names the rows of largest inner product, as far as an approximate index finds them.

    Rows were lifted to equal length by one more coordinate, √(M² - ‖w‖²), and a query has 0 there, so the largest inner
    product is the smallest angle (Bachrach et al., 2014). Before that rows were multiplied by `scale`, coordinate by
    coordinate, and a query is divided by it, which changes no product but makes queries as wide one way as the other:
    on SmolLM2, looking at 256 nodes, the index then found .96 instead of .87 of the best rows.

    Every query is a round trip to the host, on one thread: where the model runs on a GPU its queue drains for it.

    Args:
        index: of the lifted rows, cosine metric, keys the row ids.
        scale: (D,), positive.
        candidates: rows named per query; they are scored exactly afterwards.
    """

    def __init__(self, index: Index, scale: np.ndarray, vocab_size: int, candidates: int) -> None:
        self.index, self.last, self.candidates = index, vocab_size - 1, candidates
        self.scale = mx.array(scale, dtype=mx.float32)

    @classmethod
    def open(cls, file: Path, scale: np.ndarray, vocab_size: int, candidates: int) -> Nearest:
        """Map an index into memory.

        Raises:
            SkipSpecError: it is no index, or one of another head.
        """
        try:
            index = Index.restore(file, view=True, expansion_search=EXPANSION)
            if index is None:
                raise OSError("no such file")
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            raise SkipSpecError(f"The index {file} cannot be read ({one_line(error)}); build it again.") from error
        found, need = (len(index), index.ndim), (vocab_size, lifted(len(scale)))
        if found != need:
            raise SkipSpecError(f"The index {file} holds (rows, width) {found}; need {need}. Build it again.")
        return cls(index, scale, vocab_size, candidates)

    def read(self, context: Sequence[int]) -> None: ...

    def find(self, normed: mx.array) -> mx.array:  # (1, 1, D) -> (n,)
        query = normed.flatten().astype(mx.float32) / self.scale
        query = mx.pad(query / mx.linalg.norm(query), (0, self.index.ndim - query.size))  # f16 in the index: keep small
        mx.eval(query)
        keys = self.index.search(np.array(query, copy=False), self.candidates, threads=1).keys
        # A key out of range would be other memory; the file is not ours to trust.
        return mx.array(np.minimum(keys, self.last).astype(np.uint32))


def lifted(hidden_size: int) -> int:
    """Width of a lifted row: one more, rounded up to eights for the SIMD lanes."""
    return -(-(hidden_size + 1) // 8) * 8
