"""How well a draft head does, and what it is worth in tokens per second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measured:
    """What a head came to on the machine that built it, on text it had not seen.

    Attributes:
        recall: share of hidden states for which it chose the dense head's token, of `queries`.
        seconds, dense_seconds: median of a choice by this head, and by the dense one.
        layers_seconds: of a draft step without its head.
        pass_seconds: of a target pass over 1, 2, 3, … tokens.
    """

    recall: float
    queries: int
    seconds: float
    dense_seconds: float
    build_seconds: float
    layers_seconds: float = 0.0
    pass_seconds: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Measured:
        """Raises TypeError or ValueError where a manifest says something else."""
        numbers = {name: float(value) for name, value in entry.items() if name not in ("queries", "pass_seconds")}
        found = cls(queries=int(entry["queries"]), pass_seconds=tuple(map(float, entry["pass_seconds"])), **numbers)
        times = (found.seconds, found.dense_seconds, *found.pass_seconds)
        if not (0 <= found.recall <= 1 and all(0 < time < math.inf for time in times)):
            raise ValueError("a measurement that cannot be")
        return found

    def rate(self, acceptance: Sequence[float], *, dense: bool = False) -> float:
        """Tokens per second with this head, or with the dense one: the best over k of E(k) / (k·t_draft + t_pass(k+1)).

        E(k) = 1 + α_1 + α_1·α_2 + …, the α_i times recall, as if misses fell on good and bad drafts alike.
        """
        recall, draft = (1.0, self.dense_seconds) if dense else (self.recall, self.seconds)
        draft += self.layers_seconds
        best, emitted, reached = 0.0, 1.0, 1.0
        for k, (alpha, verify) in enumerate(zip(acceptance, self.pass_seconds[1:], strict=False), 1):
            reached *= alpha * recall
            emitted += reached
            best = max(best, emitted / (k * draft + verify))
        return best
