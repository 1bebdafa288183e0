"""What a pass of the target and a draft step cost, as measured (calibration.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REACH = 8.0  # past the longer context a cost grows on as between the two, at most so many times their distance


@dataclass(frozen=True)
class Costs:
    """Seconds of a target pass by width and of a draft step by drafter, at two cache lengths.

    Attributes:
        contexts: the two cache lengths, ascending.
        verify_seconds: for each, passes of 1, 2, … W rows. One row is a step of plain decoding, during which the host
            prepares the next.
        draft_seconds: by drafter name, for each of the two, one draft step.
    """

    contexts: tuple[int, int]
    verify_seconds: tuple[tuple[float, ...], tuple[float, ...]]
    draft_seconds: Mapping[str, tuple[float, float]]

    @property
    def widest(self) -> int:
        return len(self.verify_seconds[0])

    def verify(self, width: int, context_length: int) -> float:
        """A target pass over `width` rows; beyond the widest measured, every row adds what one did on average."""
        short, long = (row[min(width, self.widest) - 1] for row in self.verify_seconds)
        seconds = self._between(short, long, context_length)
        if width > self.widest > 1:
            more = (seconds - self.verify(1, context_length)) / (self.widest - 1)
            seconds += max(more, 0.0) * (width - self.widest)
        return seconds

    def draft(self, name: str, context_length: int) -> float:
        """One draft step of the drafter of that name."""
        return self._between(*self.draft_seconds[name], context_length)

    def _between(self, short: float, long: float, context_length: int) -> float:
        near, far = self.contexts
        share = min(max((context_length - near) / (far - near), 0.0), REACH)
        return short + share * max(long - short, 0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "contexts": list(self.contexts),
            "verify_seconds": [list(row) for row in self.verify_seconds],
            "draft_seconds": {name: list(pair) for name, pair in self.draft_seconds.items()},
        }

    @classmethod
    def from_json(cls, given: Any) -> Costs:
        """What `to_json` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            near, far = map(int, given["contexts"])
            short, long = (tuple(map(float, row)) for row in given["verify_seconds"])
            drafts = {str(name): (float(a), float(b)) for name, (a, b) in given["draft_seconds"].items()}
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"no costs ({error!r})") from error
        drafted = [seconds for pair in drafts.values() for seconds in pair]
        passes_fit = bool(short) and len(short) == len(long) and all(0 < seconds < math.inf for seconds in short + long)
        if not (0 <= near < far and passes_fit and all(0 <= seconds < math.inf for seconds in drafted)):
            raise ValueError("costs out of range")
        return cls((near, far), (short, long), drafts)
