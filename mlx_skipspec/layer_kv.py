"""K/V rows of one layer: a cache that grows, or a window that slides."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlx_skipspec.errors import SkipSpecError

STEP = 256  # most rows a buffer grows by (mlx-lm's always do); small ones by fewer, so drafting fits into its peak
RESERVE = 128  # rows a sliding window keeps beyond what the next token sees, so that a rewind finds them


@dataclass(frozen=True)
class Window:
    """Which past positions a token sees: itself and the newest others, `size` in all, the first `keep` always.

    This is what one-token steps on MLX's RotatingKVCache(max_size=size, keep=keep) see.
    """

    size: int
    keep: int = 0

    def __post_init__(self) -> None:
        if self.size <= self.keep:
            raise SkipSpecError(f"A window of {self.size} rows is too small; need more than {self.keep}.")


class LayerKV:
    """K/V rows of one layer, in order of position: rows for positions 0 … offset-1, less those a window forgot.

    A ring that overwrites its oldest row can't go back. Ours never overwrites: it appends behind the newest row, and
    every STEP rows or so drops the front that nobody can see any more, at the cost of a growing cache's enlarging.
    Rewinding is then lowering `offset`, for growing, windowed and quantised rows alike.

    Row i of the buffers holds position i for i < keep, and i + forgotten behind that.
    """

    def __init__(self, window: Window | None = None, bits: int | None = None, group_size: int = 64) -> None:
        self.window = window
        self.bits = bits
        self.group_size = group_size
        self.offset = 0
        self.forgotten = 0
        self.prefilling = False
        # Keys, values, each (1, H, capacity, D); quantised: packed, scales and biases of the one, then of the other.
        self._rows: tuple[mx.array, ...] = ()

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:  # (1, H, L, D) twice
        """Append L rows; return the rows that `mask(L)`, asked before, speaks about."""
        first, start = self._first_seen, self.offset - self.forgotten
        end = start + keys.shape[2]
        new: tuple[mx.array, ...] = (keys, values)
        if self.bits is not None:
            new = (*mx.quantize(keys, self.group_size, self.bits), *mx.quantize(values, self.group_size, self.bits))
        if not self._rows:
            self._rows = tuple(x[..., :0, :] for x in new)
        self._rows = tuple(_appended(rows, start, more) for rows, more in zip(self._rows, new, strict=True))
        self.offset += keys.shape[2]
        seen = [x[..., first:end, :] if end - first < x.shape[-2] else x for x in self._rows]
        if self.window is not None and end > self.window.size + RESERVE + STEP:
            self._forget()
        return (seen[0], seen[1]) if self.bits is None else (tuple(seen[:3]), tuple(seen[3:]))

    def mask(self, length: int) -> mx.array | str | None:  # (L, rows) of bool, or what fast attention takes instead
        """What each of `length` new rows will see of the rows that `update_and_fetch` returns next."""
        if self.window is None or self.offset + length <= self.window.size:
            if length > 1 and not self.prefilling and mx.default_device() == mx.Device(mx.cpu):
                # A CPU, which has no fused attention, would make the same mask anew in every layer.
                return mx.arange(self.offset + length) <= mx.arange(self.offset, self.offset + length)[:, None]
            return "causal" if length > 1 else None
        size, keep = self.window.size, self.window.keep
        if length == 1 and keep == 0:
            return None  # what the one row must not see is not even fetched
        row = mx.arange(self._first_seen, self.offset + length - self.forgotten)[None]
        position = mx.where(row < keep, row, row + self.forgotten)
        query = mx.arange(self.offset, self.offset + length)[:, None]
        if self.prefilling:
            # mlx-lm counts a block's window from the start of its concatenated rows, the kept ones included: the block
            # sees them as if they stood right before the oldest other row it holds, and loses them one by one.
            past = self.offset - size + 1
            held = (position < keep) | (position >= past + keep)
            position = mx.where(position < keep, position + max(past, 0), position)
            return held & (position <= query) & (position > query - size)
        return (position <= query) & ((position < keep) | (position > query - size + keep))

    @property
    def earliest(self) -> int:
        """The smallest length but 0 this layer can be rewound to."""
        return self.forgotten + self.window.size - 1 if self.forgotten and self.window else 0

    def hold(self) -> tuple[int, int, Any]:
        """This layer as it stands, for `put_back`. Rows are handles, not copies; while somebody holds them, an append
        that is evaluated has to copy the buffer."""
        return self.offset, self.forgotten, tuple(map(copy.copy, self._rows))

    def put_back(self, held: tuple[int, int, Any]) -> None:
        self.offset, self.forgotten, self._rows = held

    def mark(self) -> tuple[int, int, Any]:
        """What `return_to` needs. A growing layer's rows stay where they are; a window's, which it will forget, are
        held, and the next append has to copy them once."""
        offset, forgotten, rows = self.hold()
        return offset, forgotten, None if self.window is None else rows

    def return_to(self, mark: tuple[int, int, Any]) -> None:
        self.offset, self.forgotten, rows = mark
        if self.window is not None:
            self._rows = tuple(map(copy.copy, rows))  # handles of its own, so that the mark serves again

    @property
    def rows(self) -> tuple[mx.array, ...]:
        """The rows held, without the room behind them; as `state`."""
        return tuple(x[..., : self.offset - self.forgotten, :] for x in self._rows)

    @classmethod
    def of(cls, like: LayerKV, offset: int, forgotten: int, rows: tuple[mx.array, ...]) -> LayerKV:
        """A layer of the same kind as `like` that holds these rows."""
        made = cls(like.window, like.bits, like.group_size)
        made.offset, made.forgotten, made._rows = offset, forgotten, rows
        return made

    @property
    def state(self) -> tuple[mx.array, ...]:
        """The arrays to evaluate."""
        return self._rows

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self._rows)

    @property
    def _first_seen(self) -> int:
        """First buffer row the next step fetches; with first rows to keep it is 0, and the mask hides the rest."""
        if self.window is None or self.window.keep:
            return 0
        return max(self.offset - self.window.size + 1 - self.forgotten, 0)

    def _forget(self) -> None:
        assert self.window is not None
        keep = self.window.keep
        drop = self.offset - RESERVE - self.window.size + 1 - self.forgotten
        end = self.offset - self.forgotten

        def shortened(rows: mx.array) -> mx.array:
            newest = rows[..., keep + drop : end, :]
            rows = mx.concatenate([rows[..., :keep, :], newest], axis=-2) if keep else newest
            return _with_room(rows, end - drop + STEP)

        self._rows = tuple(map(shortened, self._rows))
        self.forgotten += drop


def _appended(rows: mx.array, start: int, more: mx.array) -> mx.array:
    """`rows` with `more` in place of those from `start` on, enlarged if need be."""
    end = start + more.shape[-2]
    if end > rows.shape[-2]:
        rows = _with_room(rows[..., :start, :], end)
    rows[..., start:end, :] = more
    return rows


def _with_room(rows: mx.array, needed: int) -> mx.array:  # (1, H, n, D) -> (1, H, capacity >= needed, D)
    shape, step = list(rows.shape), min(max(needed // 8, STEP // 4), STEP)
    shape[-2] = -(-needed // step) * step - rows.shape[-2]
    return mx.concatenate([rows, mx.zeros(shape, rows.dtype)], axis=-2)
