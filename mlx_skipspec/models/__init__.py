"""Our own ports of Llama, Mistral, Qwen2 and Qwen3, named as mlx-lm names them so that its loader can fill them."""

from __future__ import annotations

from typing import Any

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.models import llama, mistral, qwen2, qwen3
from mlx_skipspec.models.args import ModelArgs, checked
from mlx_skipspec.models.block import Model

FAMILIES = {"llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3}


def get_model_classes(config: dict[str, Any]) -> tuple[type[Model], type]:
    """The hook of `mlx_lm.utils.load_model`: which classes build the model of this config.

    Raises:
        SkipSpecError: no port of ours computes this model type.
    """
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise SkipSpecError(
            f"Model type {model_type!r} is not one we compute exactly; "
            f"need one of {', '.join(sorted(FAMILIES))}. Use mlx-lm for other models."
        )

    read_args = family.args

    class Args:
        @staticmethod
        def from_dict(config: dict[str, Any]) -> ModelArgs:
            return read_args(checked(config))

    return Model, Args
