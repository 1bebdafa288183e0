"""Drafters as the pace sees them: what they could guess this round, how sure it is, and what became of it."""

from __future__ import annotations

from mlx_skipspec.drafters import Drafter, LayerSkip, PromptLookup
from mlx_skipspec.sources.computing import Computing
from mlx_skipspec.sources.copying import Copying
from mlx_skipspec.sources.looking import Looking
from mlx_skipspec.sources.protocol import Guess, Source

__all__ = ["Computing", "Copying", "Guess", "Looking", "Source", "source_of"]


def source_of(drafter: Drafter) -> Source:
    if isinstance(drafter, PromptLookup):
        return Copying(drafter)
    return Looking(drafter) if isinstance(drafter, LayerSkip) else Computing(drafter)
