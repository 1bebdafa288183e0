"""Who drafts in a conversation, where another drafter or another way to draw may be asked for at any time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mlx_skipspec.drafters import PromptLookup
from mlx_skipspec.drafting import Drafting, choose_drafter
from mlx_skipspec.pace import Paced
from mlx_skipspec.sampling import Sampler
from mlx_skipspec.target import Target


class Chooser:
    """Makes drafters, each of which goes on with what those before have learned: of the machine and of every drafter
    by the pace, of the text by the lookup.

    Args:
        recalibrate: measure again what passes and draft steps cost, once.
        explain: hears a line whenever the pace decides otherwise than before.
        layers: `plan`, `sidecar` and `head` as for `choose_drafter`, for those drafters that use them.
    """

    def __init__(
        self,
        target: Target,
        *,
        recalibrate: bool = False,
        explain: Callable[[str], None] | None = None,
        **layers: Any,
    ) -> None:
        self.target, self.recalibrate, self.explain, self.layers = target, recalibrate, explain, layers
        self._lookup = PromptLookup()
        self._pace: Paced | None = None

    def __call__(self, name: str) -> Callable[[Sampler], Drafting]:
        """How to make the drafter of this name for a sampler. What can't be had is said when it is made."""
        return partial(self._make, name)

    def _make(self, name: str, sampler: Sampler) -> Drafting:
        made = choose_drafter(
            self.target,
            name,
            sampler=sampler,
            recalibrate=self.recalibrate,
            explain=self.explain,
            lookup=self._lookup,
            **(self.layers if name in ("auto", "skip") else {}),
        )
        if isinstance(made.drafter, Paced):
            if self._pace is not None:
                made.drafter.follow(self._pace)
            self._pace, self.recalibrate = made.drafter, False
        return made
