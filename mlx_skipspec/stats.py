"""One histogram, from which every figure about acceptance follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mlx_skipspec.step import Step


@dataclass
class Stats:
    """Counts rounds by (source, drafted, accepted), and by source the tokens that were drafted and not verified.

    `acceptance` is accepted/drafted and says how good the guesses are. `share_from_draft` is the part of the emitted
    tokens that was guessed, and bounds the speed-up. They are different numbers; both are reported by name.
    """

    rounds: Counter[tuple[str | None, int, int]] = field(default_factory=Counter)
    tokens: int = 0
    from_draft: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, step: Step) -> None:
        self.rounds[step.source, step.drafted, step.accepted] += 1
        if step.source is not None:
            self.dropped[step.source] += step.dropped
        self.tokens += len(step.tokens)
        self.from_draft += step.from_draft

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Stats:
        stats = cls()
        for step in steps:
            stats.add(step)
        return stats

    def merge(self, other: Stats) -> None:
        self.rounds.update(other.rounds)
        self.dropped.update(other.dropped)
        self.tokens += other.tokens
        self.from_draft += other.from_draft

    @property
    def passes(self) -> int:
        """Target passes that emitted tokens; the last pass of the prefill is one of them."""
        return self.rounds.total()

    @property
    def drafted(self) -> int:
        return sum(n * drafted for (_, drafted, _), n in self.rounds.items())

    @property
    def accepted(self) -> int:
        return sum(n * accepted for (_, _, accepted), n in self.rounds.items())

    @property
    def tokens_per_pass(self) -> float:
        """Mean tokens per target pass; plain decoding has 1.0 (Spec-Bench's #MAT)."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def acceptance(self) -> float | None:
        """accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def share_from_draft(self) -> float | None:
        """Tokens that were guessed / tokens emitted."""
        return self.from_draft / self.tokens if self.tokens else None

    def acceptance_by_position(self, source: str | None = None) -> list[float | None]:
        """Conditional acceptance: of the rounds that drafted more than i tokens and had the first i accepted, the
        share whose next one was accepted too; None where there was no such round. One entry per drafted position.
        """
        rounds = [(d, a, n) for (s, d, a), n in self.rounds.items() if source in (None, s)]
        deepest = max((d for d, _, _ in rounds), default=0)
        result: list[float | None] = []
        for i in range(deepest):
            tried = sum(n for d, a, n in rounds if d > i and a >= i)
            result.append(sum(n for d, a, n in rounds if d > i and a > i) / tried if tried else None)
        return result

    def decisions(self) -> dict[str, dict[str, int]]:
        """By who drafted, `plain` for nobody, how many rounds had guesses of how many tokens."""
        made: dict[str, dict[str, int]] = {}
        for source, drafted in sorted({(source or "plain", drafted) for source, drafted, _ in self.rounds}):
            of = (n for (s, d, _), n in self.rounds.items() if (s or "plain", d) == (source, drafted))
            made.setdefault(source, {})[str(drafted)] = sum(of)
        return made

    def by_source(self) -> dict[str, dict[str, Any]]:
        """Of each drafter that was at work: rounds, tokens verified (drafted), accepted, dropped unverified, and
        acceptance by position."""
        return {
            name: {
                "rounds": sum(n for (s, _, _), n in self.rounds.items() if s == name),
                "drafted": sum(n * d for (s, d, _), n in self.rounds.items() if s == name),
                "accepted": sum(n * a for (s, _, a), n in self.rounds.items() if s == name),
                "dropped": self.dropped[name],
                "acceptance_by_position": self.acceptance_by_position(name),
            }
            for name in sorted({s for s, _, _ in self.rounds if s is not None})
        }
