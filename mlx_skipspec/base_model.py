"""The model a sidecar belongs to, known again by its sizes and a *fingerprint* of its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.fingerprint import SAME, likeness, probe

RowsOf = Callable[[str, list[int]], np.ndarray]  # (tensor name, rows) -> (len(rows), columns), float


@dataclass(frozen=True)
class Base:
    """What a sidecar remembers of it."""

    depth: int
    hidden_size: int
    vocab_size: int
    fingerprint: tuple[float, ...]
    name: str = ""

    @classmethod
    def of(cls, depth: int, hidden_size: int, vocab_size: int, rows_of: RowsOf, name: str = "") -> Base:
        """Read the fingerprint through `rows_of`, which dequantises and works for torch and MLX alike."""
        probes: list[float] = []
        for tensor in _probed(depth):
            probes += probe(partial(rows_of, tensor), vocab_size if "embed" in tensor else hidden_size)
        return cls(depth, hidden_size, vocab_size, tuple(probes), name)

    def check(self, found: Base, sidecar: str) -> None:
        """Refuse `found` as the model this sidecar was made for.

        Raises:
            SkipSpecError: it has other dimensions or other weights.
        """
        if self.fits(found):
            return
        what = "{} layers, hidden {}, vocabulary {}"
        other = what.format(*found.sizes)
        if self.sizes == found.sizes:
            other = f"other weights (likeness {self.likeness(found):.2f}, need {SAME})"
        raise SkipSpecError(
            f"The sidecar {sidecar} belongs to {self.name or 'another model'} ({what.format(*self.sizes)}), but the "
            f"loaded model has {other}; need a sidecar of this model. "
            "Make one: mlx-skipspec fit --model MODEL --out DIR."
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.depth, self.hidden_size, self.vocab_size

    def fits(self, found: Base) -> bool:
        return self.sizes == found.sizes and self.likeness(found) >= SAME

    def likeness(self, other: Base) -> float:
        """Cosine of the two fingerprints, each probed matrix weighing the same."""
        return likeness(self.fingerprint, other.fingerprint)


def _probed(depth: int) -> list[str]:
    layers = sorted({0, depth // 2, depth - 1})
    return ["model.embed_tokens.weight", *(f"model.layers.{i}.mlp.down_proj.weight" for i in layers)]
