"""Every substring of a growing text, where it has been before, and what followed it."""

from __future__ import annotations

COUNTED = 32  # contexts counted per token; ordinary text has fewer, a text that runs in circles any number


class SuffixAutomaton:
    """The suffix automaton of a text (Blumer et al., 1985): at most two states and three transitions a token.

    A state stands for all substrings that end at the same places. Its link leads to the longest suffix of these that
    ends at more places; so the links from the newest state pass all suffixes of the text, longest first, and the first
    of them is the longest that has been here before. That one is the match, and costs nothing to find.

    Attributes:
        next: per state, the state behind each token that ever followed.
        link: per state, where the longest suffix with more places is; -1 for the root, state 0.
        length: per state, tokens of its longest substring.
        count: per state, how often its substrings stand in the text.
        best: per state, the token that followed most often, of equals the one that did so last; -1 for none.
        newest: the state of the whole text.

    `count` and `best` are exact unless more than COUNTED suffixes of the text have been here before, as in a text that
    runs in circles; then the shorter ones miss this round.
    """

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = []
        self.link: list[int] = []
        self.length: list[int] = []
        self.count: list[int] = []
        self.best: list[int] = []
        self.newest = self._add({}, -1, 0, 0, -1)

    @property
    def match(self) -> int:
        """The state of the longest suffix that also stands earlier; the root if there is none."""
        return max(self.link[self.newest], 0)

    def extend(self, token: int) -> None:
        """Append a token; amortised O(1)."""
        state = self.newest
        self.newest = new = self._add({}, 0, self.length[state] + 1, 1, -1)
        while state >= 0 and token not in self.next[state]:  # contexts it never followed
            self.next[state][token] = new
            self._prefer(state, token)
            state = self.link[state]
        if state < 0:
            return
        after = self.next[state][token]
        if self.length[after] > self.length[state] + 1:
            after = self._split(state, token)
        self.link[new] = after
        # Contexts it did follow. Several may lead to one state, which is counted once.
        counted = -1
        for _ in range(COUNTED):
            after = self.next[state][token]
            if after != counted:
                self.count[after] += 1
                counted = after
            self._prefer(state, token)
            state = self.link[state]
            if state < 0:
                return

    def _split(self, state: int, token: int) -> int:
        """Give the substrings of `state`, with `token` behind, a state of their own: they end at one more place."""
        whole, length = self.next[state][token], self.length[state] + 1
        part = self._add(self.next[whole].copy(), self.link[whole], length, self.count[whole], self.best[whole])
        self.link[whole] = part
        while state >= 0 and self.next[state].get(token) == whole:
            self.next[state][token] = part
            state = self.link[state]
        return part

    def _prefer(self, state: int, token: int) -> None:
        """`token` has just followed `state`, once more: it is the best if no other did so more often."""
        after, best = self.next[state], self.best[state]
        if best < 0 or self.count[after[token]] >= self.count[after[best]]:
            self.best[state] = token

    def _add(self, after: dict[int, int], link: int, length: int, count: int, best: int) -> int:
        self.next.append(after)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        self.best.append(best)
        return len(self.link) - 1
