"""From a folder or a hub id to a Target and its tokenizer."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, load_config, load_model, load_tokenizer

from mlx_skipspec.base_model import Base
from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.models import get_model_classes
from mlx_skipspec.models.block import weight_rows
from mlx_skipspec.target import Target

log = logging.getLogger("mlx_skipspec")
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
HUB_FILES = ["*.json", "model*.safetensors", "tokenizer.model", "*.txt", "*.jinja", "skipspec/*"]


def load(path_or_hf_repo: str | Path, *, dtype: str = "auto", lazy: bool = False) -> tuple[Target, TokenizerWrapper]:
    """Load a Llama, Mistral, Qwen2 or Qwen3 checkpoint through mlx-lm's loader.

    Args:
        path_or_hf_repo: a folder, or a hub id (downloaded into the Hugging Face cache; offline mode respected).
        dtype: what to compute in: "float32", "bfloat16", "float16", or "checkpoint" for what the files hold, quantised
            or not. "auto" is "checkpoint" on a GPU and "float32" on a CPU, where 16-bit and quantised matmuls are slow.
        lazy: leave the weights on disk until they are used.

    Raises:
        SkipSpecError: nothing there, files damaged or missing, or a model we do not compute exactly.
    """
    if dtype not in ("auto", "checkpoint", *DTYPES):
        raise SkipSpecError(f"dtype={dtype!r}; need auto, checkpoint, {', '.join(DTYPES)}.")
    without_compiler_go_on()
    folder = resolve(path_or_hf_repo)
    target = load_target(folder, dtype, lazy=True)
    tokenizer = read_tokenizer(folder)
    if not lazy:
        read_weights(target)
    return target, tokenizer


def resolve(path_or_hf_repo: str | Path) -> Path:
    """The local folder of a model, downloading it from the hub if the name is not one."""
    folder = Path(os.path.expanduser(path_or_hf_repo))
    if os.path.exists(folder):  # unlike Path's, these answer no where there is no looking
        if not os.path.isdir(folder):
            raise SkipSpecError(f"{folder} is a file; need the model's folder.")
        if not os.path.isfile(folder / "config.json"):
            raise SkipSpecError(f"No config.json in {folder}; need a model folder (config.json, model*.safetensors).")
        return folder
    name = str(path_or_hf_repo)
    if name.startswith((".", "~", "/")) or name.count("/") != 1:
        raise SkipSpecError(
            f"No folder {name[:200]}; need a model folder or a hub id like mlx-community/Qwen3-4B-4bit."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise SkipSpecError(
            f"{name} is no folder here, and the hub gave {one_line(error)}; check the name or give a local folder."
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json with the keys whose default depends on the weights filled in."""
    try:
        config = load_config(folder)
    except (OSError, ValueError, RecursionError) as error:
        raise SkipSpecError(f"{folder / 'config.json'} cannot be read ({one_line(error)}); copy it again.") from error
    except (AttributeError, TypeError) as error:
        raise SkipSpecError(f"A config in {folder} holds no JSON object ({one_line(error)}); copy it again.") from error
    if not isinstance(config, dict):
        raise SkipSpecError(f"{folder / 'config.json'} holds no JSON object; copy it again.")
    return config


def load_target(folder: Path, dtype: str = "auto", lazy: bool = False) -> Target:
    """The model alone; see `load`."""
    config = read_config(folder)
    get_model_classes(config)  # an unknown family is refused before any file is opened
    names = _tensor_names(folder)
    override = {}
    if "tie_word_embeddings" not in config:
        override["tie_word_embeddings"] = not any(name.startswith("lm_head.") for name in names)
    try:
        model, _ = load_model(folder, lazy=True, model_config=override, get_model_classes=get_model_classes)
    except SkipSpecError:
        raise
    except Exception as error:  # see `read_tokenizer`
        raise SkipSpecError(
            f"The weights in {folder} do not fit its config.json ({one_line(error)}); copy both again."
        ) from error
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    if dtype == "auto":
        dtype = "float32" if on_cpu else "checkpoint"
    if dtype != "checkpoint":
        _cast(model, DTYPES[dtype], dequantise="quantization" in config or "quantization_config" in config)
    target = Target(model, folder)
    if not lazy:
        read_weights(target)
    return target


def read_weights(target: Target) -> None:
    """Bring into memory what of the weights is not there yet.

    Raises:
        SkipSpecError: the disk does not give them.
    """
    try:
        mx.eval(target.model.parameters())
    except RuntimeError as error:
        raise SkipSpecError(f"The model's weights cannot be read ({one_line(error)}); copy them again.") from error


def read_tokenizer(folder: Path) -> TokenizerWrapper:
    """The tokenizer, which ends texts at the EOS ids of the model's configs."""
    eos = read_config(folder).get("eos_token_id")
    try:
        return load_tokenizer(folder, eos_token_ids=eos)
    except Exception as error:  # what readers of damaged files raise has no common class, in Rust it is bare Exception
        raise SkipSpecError(
            f"The tokenizer in {folder} cannot be loaded ({one_line(error)}); copy its files again."
        ) from error


def base_of(target: Target, name: str = "") -> Base:
    """What sidecars know this model by."""

    def rows_of(tensor: str, rows: list[int]) -> np.ndarray:
        module = target.model
        for part in tensor.split(".")[:-1]:
            module = module[int(part)] if part.isdigit() else module[part]
        return np.array(weight_rows(module, mx.array(rows)).astype(mx.float32))

    return Base.of(target.depth, target.hidden_size, target.vocab_size, rows_of, name)


def without_compiler_go_on() -> None:
    """On a Linux CPU mlx compiles fused kernels with g++ at run time; without one, go on unfused and say so."""
    if sys.platform == "linux" and mx.default_device() == mx.Device(mx.cpu) and shutil.which("g++") is None:
        mx.disable_compile()
        log.warning(
            "no g++ found: mlx can't fuse kernels on this CPU and runs a little slower; install g++ to change that"
        )


def _tensor_names(folder: Path) -> set[str]:
    """Names of all tensors, from the files' headers; checks on the way that every file is whole."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("model*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise SkipSpecError(f"{index} cannot be read ({one_line(error)}); copy it again.") from error
        missing = sorted(wanted - {file.name for file in files})
        if missing:
            raise SkipSpecError(f"{folder} lacks {missing[0]}, which its index names; copy or download it again.")
    if not files:
        raise SkipSpecError(f"No model*.safetensors in {folder}; need a checkpoint in safetensors format.")
    names: set[str] = set()
    for file in files:
        try:
            with safe_open(file, framework="numpy") as tensors:
                names |= set(tensors.keys())
        except (SafetensorError, OSError) as error:
            raise SkipSpecError(
                f"{file} is damaged or cut short ({one_line(error)}); copy or download it again."
            ) from error
    return names


def _cast(model: Any, dtype: mx.Dtype, dequantise: bool) -> None:
    """Compute in `dtype`. Dequantising happens in float32, so that every weight is rounded at most once."""

    def cast_to(dtype: mx.Dtype) -> None:
        model.update(
            tree_map(lambda x: x.astype(dtype) if mx.issubdtype(x.dtype, mx.floating) else x, model.parameters())
        )

    if dequantise:
        cast_to(mx.float32)
        dequantize_model(model)
    cast_to(dtype)
