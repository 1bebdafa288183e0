"""Copy what followed the longest suffix seen before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_skipspec.drafters.protocol import NOTHING
from mlx_skipspec.drafters.suffix_automaton import SuffixAutomaton
from mlx_skipspec.kv import KV
from mlx_skipspec.target import Target

GROWTH = 1  # a match of m tokens is worth 1 + m more (SAM-Decoding says 1 + 4·m; of those rows 4 in 100 are right)
SEAM = 16  # last tokens that are looked at again before new ones are read behind them


@dataclass
class Proposal:
    """A guess, and what speaks for it.

    Attributes:
        match: tokens of the suffix that was found earlier; 0 for no idea.
        tokens: what followed there.
        shares: for each token, of the earlier places that had gone on as guessed so far, the share that did so again.
        places: for each token, how many such places there were.
    """

    match: int = 0
    tokens: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class PromptLookup:
    """Finds the longest suffix that stands earlier in prompt and output; proposes what followed there most often.

    The guess grows with the match and ends where fewer than `share` of the match's earlier places went on as guessed
    (SuffixDecoding; Oliaro et al., 2024). It depends on the context's last `window` tokens, at times only half of them,
    and on nothing else: what is kept from round to round, and from one turn of a chat to the next, only spares reading
    a text again. A list that is given again is taken to have grown; any other text is compared with what was read.
    """

    def __init__(self, shortest: int = 2, share: float = 0.3, window: int = 1 << 16) -> None:
        self.shortest, self.share, self.half = shortest, share, window // 2
        self.name, self.dropped = "lookup", 0
        self._context: Sequence[int] | None = None  # the list read last
        self._automaton, self._start = SuffixAutomaton(), 0
        self._read: list[int] = []  # what the automaton holds: the tokens of the context from place `_start` on

    def begin(self, target: Target, kv: KV) -> None:
        self._context = None

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        tokens = self.propose(context, k).tokens
        return mx.array(tokens, dtype=mx.uint32) if tokens else NOTHING

    def propose(self, context: Sequence[int], k: int) -> Proposal:
        """The guess on the host, with what it rests on."""
        self._take(context)
        seen = self._automaton
        state = match = seen.match
        found = Proposal(seen.length[match])
        if found.match < self.shortest:
            return Proposal()
        places = earlier = seen.count[match] - 1  # nothing has followed its newest place yet
        for _ in range(min(k, 1 + GROWTH * found.match)):
            if state == seen.newest:  # the copy has come to the text's end: it runs in a circle, on from the match
                state, places = match, earlier
            token = seen.best[state]
            state = seen.next[state][token]
            if seen.count[state] < self.share * earlier:
                break
            found.tokens.append(token)
            found.shares.append(seen.count[state] / max(places, 1))
            found.places.append(places)
            places = seen.count[state]
        return found

    def observe(self, hidden: mx.array) -> None: ...

    def _take(self, context: Sequence[int]) -> None:
        """Read what is new in `context`, or all of it if it does not begin as the one before."""
        # Where reading starts follows from the length alone, so a text grown step by step is read like one given whole.
        start = max(len(context) // self.half - 1, 0) * self.half
        if start != self._start or not self._continues(context):
            self._automaton, self._start, self._read = SuffixAutomaton(), start, []
        self._start = -1  # an interrupt in the middle of this leaves an automaton nobody should go on with
        for token in context[start + len(self._read) :]:
            self._automaton.extend(token)
            self._read.append(token)
        self._context, self._start = context, start

    def _continues(self, context: Sequence[int]) -> bool:
        end = self._start + len(self._read)
        since = max(end - SEAM, self._start) if context is self._context else self._start
        return list(context[since:end]) == self._read[since - self._start :]
