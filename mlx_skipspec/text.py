"""From token ids to text as it appears, and the strings that end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_skipspec.errors import SkipSpecError


def check_stop(stop: Sequence[str]) -> tuple[str, ...]:
    """The strings, none of which may be empty: it would end every text before it begins.

    Raises:
        SkipSpecError: one is.
    """
    if "" in stop:
        raise SkipSpecError("A stop string is empty; need at least one character.")
    return tuple(stop)


class TextStream:
    """Detokenises as tokens are emitted and says when the text is over: the loop's `stop`.

    A piece of text that may turn out to be the beginning of a stop string is held back until it is clear.

    Args:
        tokenizer: mlx-lm's TokenizerWrapper; its EOS ids end the text.
        stop: strings that end the text; neither they nor what follows is shown.

    Raises:
        SkipSpecError: a stop string is empty.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.stop = check_stop(stop)
        self.eos = frozenset(tokenizer.eos_token_ids)
        self.detokenizer = tokenizer.detokenizer
        self.detokenizer.reset()
        self._held = ""
        self._over = False
        self._segments: list[str] = []

    def __call__(self, token: int) -> bool:
        """Take one emitted token; True when the text ends with it."""
        if token in self.eos:
            self._segments.append("")
            return True
        self.detokenizer.add_token(token)
        self._segments.append(self._release(self.detokenizer.last_segment))
        return self._over

    def segments(self) -> list[str]:
        """The text each token taken since the last call has set free."""
        taken, self._segments = self._segments, []
        return taken

    def finish(self) -> str:
        """What is left when no more tokens come."""
        if self._over:
            return ""
        self.detokenizer.finalize()
        rest = self._release(self.detokenizer.last_segment)
        held, self._held = self._held, ""
        return rest + held

    def _release(self, more: str) -> str:
        text = self._held + more
        ends = [at for at in (text.find(string) for string in self.stop) if at >= 0]
        if ends:
            self._over, self._held = True, ""
            return text[: min(ends)]
        keep = max((n for s in self.stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]
