"""Lossless self-speculative decoding for Llama, Mistral and Qwen models on MLX."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mlx_skipspec.api import generate, load, stream_generate
    from mlx_skipspec.errors import SkipSpecError
    from mlx_skipspec.plan import SkipPlan
    from mlx_skipspec.sampling import Sampler

# Names are fetched on first use: a machine without mlx can still import what needs none.
_HOMES = {
    "load": "api",
    "stream_generate": "api",
    "generate": "api",
    "Sampler": "sampling",
    "SkipPlan": "plan",
    "SkipSpecError": "errors",
}
__all__ = ["Sampler", "SkipPlan", "SkipSpecError", "generate", "load", "stream_generate"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
