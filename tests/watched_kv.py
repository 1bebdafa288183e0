"""A cache beside a plain list of rows, which says what every appended row must see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from mlx_skipspec.kv import KV
from mlx_skipspec.layer_kv import Window

GROUP = 32
HEADS, WIDTH = 2, 32


def examples(count: int) -> settings:
    return settings(max_examples=count, derandomize=True, deadline=None, database=None)


def numbers(ids: Sequence[int]) -> np.ndarray:  # -> (2, 1, H, L, D)
    """Keys and values from which a row's id can be read back, also after 4 bits: it is the smallest number in a key."""
    base = np.array(ids, dtype=np.float32)[:, None]
    pattern = np.arange(WIDTH, dtype=np.float32) / 100 + np.arange(HEADS, dtype=np.float32)[:, None, None] * 1000
    keys = (base + pattern)[None]
    return np.stack([keys, -keys - 1])


def rows(ids: Sequence[int]) -> tuple[mx.array, mx.array]:  # -> (1, H, L, D) twice
    keys, values = numbers(ids)
    return mx.array(keys), mx.array(values)


def plain(pair: Any, bits: int | None) -> np.ndarray:  # -> (2, 1, H, L, D)
    if bits is not None:
        pair = [mx.dequantize(*x, group_size=GROUP, bits=bits) for x in pair]
    return np.array(mx.stack(pair))


def stored(ids: Sequence[int], bits: int | None) -> np.ndarray:  # -> (2, 1, H, L, D)
    """What a list of rows would give back for these ids."""
    return numbers(ids) if bits is None else plain([mx.quantize(x, GROUP, bits) for x in rows(ids)], bits)


def as_table(mask: Any, length: int, width: int) -> np.ndarray:  # -> (L, rows) of bool
    """What fast attention makes of a mask."""
    if mask is None:
        return np.ones((length, width), dtype=bool)
    if isinstance(mask, str):
        return np.tri(length, width, width - length, dtype=bool)
    return np.array(mask)


def one_token_sees(window: Window | None, queries: range, count: int) -> np.ndarray:  # -> (L, count) of bool
    """The rule, from nothing but positions: what one-token steps see on a growing cache or on MLX's ring."""
    query, position = np.array(queries)[:, None], np.arange(count)[None]
    seen = position <= query
    if window is not None:
        seen &= (position < window.keep) | (position > query - (window.size - window.keep)) | (query < window.size)
    return seen


class Watched:
    """A KV beside a list of row ids for each layer: every append asserts that its rows see what the list says."""

    def __init__(self, windows: Sequence[Window | None], bits: int | None = None) -> None:
        self.kv, self.bits = KV(windows, bits, GROUP), bits
        self.lists = [np.zeros(0, dtype=int) for _ in windows]
        self.used = 0  # ids are never used twice: a stale row is not mistaken for a new one at its position

    def append(self, count: int, layers: Sequence[int] | None = None, ids: Sequence[int] | None = None) -> None:
        ids = range(self.used, self.used + count) if ids is None else ids
        self.used = max(self.used, ids[-1] + 1)
        for i in range(len(self.lists)) if layers is None else layers:
            layer, held = self.kv[i], np.append(self.lists[i], ids)
            self.lists[i] = held
            mask = layer.mask(count)
            got = plain(layer.update_and_fetch(*rows(ids)), self.bits)
            position = np.full(self.used, -1)
            position[held] = np.arange(len(held))
            at = position[np.round(got[0, 0, 0, :, 0]).astype(int)]
            table = as_table(mask, count, got.shape[-2])
            looked_at = table.any(axis=0)
            assert (at[looked_at] >= 0).all(), "a row is seen that was taken back"
            seen = np.zeros((count, len(held)), dtype=bool)
            seen[:, at[looked_at]] = table[:, looked_at]
            assert seen.sum() == table.sum(), "a row is seen twice"
            expected = one_token_sees(layer.window, range(len(held) - count, len(held)), len(held))
            np.testing.assert_array_equal(seen, expected)
            np.testing.assert_array_equal(got[..., looked_at, :], stored(held[at[looked_at]], self.bits))

    def rewind_to(self, length: int) -> None:
        self.kv.rewind_to(length)
        self.lists = [held[:length] for held in self.lists]

    def snapshot(self) -> list[tuple[Any, ...]]:
        """Everything a layer is, for "nothing has changed"."""
        return [
            (
                layer.offset,
                layer.forgotten,
                layer.earliest,
                *(np.array(x).tobytes() for _, x in tree_flatten(layer.state)),
            )
            for layer in self.kv.layers
        ]


def windows(largest: int = 40) -> st.SearchStrategy[Window]:
    sized = st.tuples(st.integers(1, largest), st.integers(0, 6))
    return sized.map(lambda pair: Window(pair[0] + pair[1], pair[1]))
