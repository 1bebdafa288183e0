"""Guessers of what the target will say next, behind one protocol."""

from mlx_skipspec.drafters.first_of import FirstOf
from mlx_skipspec.drafters.layer_skip import LayerSkip
from mlx_skipspec.drafters.none import NoDraft
from mlx_skipspec.drafters.prompt_lookup import PromptLookup
from mlx_skipspec.drafters.protocol import NOTHING, Drafter, OneIdea, Thinker

__all__ = ["NOTHING", "Drafter", "FirstOf", "LayerSkip", "NoDraft", "OneIdea", "PromptLookup", "Thinker"]
