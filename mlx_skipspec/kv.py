"""The one cache that draft and verify share, and the way back in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.layer_kv import LayerKV, Window


class KV:
    """The list of layer caches, with one absolute, idempotent, checked way back.

    Invariant between rounds: the rows of the prompt and of every emitted token but the last are there.

    Args:
        exact: rows prefilled in blocks, too, see what one-token steps would see, so that a row depends on the tokens
            up to it and on nothing else: it can be gone on with from anywhere. Else they see what mlx-lm's prefill
            shows them, which is something else once a ring with kept rows has wrapped.
    """

    def __init__(
        self, windows: Sequence[Window | None], bits: int | None = None, group_size: int = 64, exact: bool = False
    ) -> None:
        self.layers = [LayerKV(window, bits, group_size) for window in windows]
        self.exact = exact

    def __getitem__(self, layer: int) -> LayerKV:
        return self.layers[layer]

    @property
    def length(self) -> int:
        """Rows that every layer holds (a draft may have gone further in the layers it keeps)."""
        return min(layer.offset for layer in self.layers)

    def rewind_to(self, length: int) -> None:
        """Forget every row from position `length` on, in all layers; 0 empties the cache and always works.

        Raises:
            SkipSpecError: a layer does not hold that many rows, or its window has forgotten what it would need.
                Nothing is changed then.
        """
        if length > self.length:
            raise SkipSpecError(f"rewind_to({length}) looks forward: {self.length} rows are held; prefill instead.")
        if length < self.earliest and length != 0:
            raise SkipSpecError(
                f"rewind_to({length}) needs rows that are gone; need {self.earliest} or more, or 0 and a new prefill."
            )
        for layer in self.layers:
            layer.offset = length
            layer.forgotten = layer.forgotten if length else 0

    @property
    def earliest(self) -> int:
        """The smallest length but 0 that `rewind_to` accepts."""
        return max(layer.earliest for layer in self.layers)

    def hold(self) -> list[tuple[int, int, Any]]:
        """Everything as it stands: what is appended from now on and not yet evaluated can be forgotten at no cost."""
        return [layer.hold() for layer in self.layers]

    def put_back(self, held: list[tuple[int, int, Any]]) -> None:
        for layer, part in zip(self.layers, held, strict=True):
            layer.put_back(part)

    def mark(self) -> list[tuple[int, int, Any]]:
        """A state to return to, as often as wanted, even when a window has forgotten its rows since."""
        return [layer.mark() for layer in self.layers]

    def return_to(self, mark: list[tuple[int, int, Any]]) -> None:
        """Stand where `mark` was made. Since then nothing may have been rewound to before it."""
        for layer, part in zip(self.layers, mark, strict=True):
            layer.return_to(part)

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        """Blocks inside see what mlx-lm's prefill shows them, unless exact; outside, what one-token steps would see."""
        for layer in self.layers:
            layer.prefilling = not self.exact
        try:
            yield
        finally:
            for layer in self.layers:
                layer.prefilling = False

    @property
    def state(self) -> list[Any]:
        return [layer.state for layer in self.layers]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)
