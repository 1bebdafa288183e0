"""A prompt's cache in a file. It holds K/V rows, and so belongs to one model, the dtype it computes in and one kind of
cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.folders import whole_file
from mlx_skipspec.kv import KV
from mlx_skipspec.layer_kv import LayerKV
from mlx_skipspec.prompt_cache import AGAIN, PromptCache
from mlx_skipspec.target import Target

SCHEMA = "mlx-skipspec prompt cache 1"
PROBES = 16  # numbers of each tensor a model is known by


def check_cache_file(file: Path) -> None:
    """Refuse a name nothing can be written to, before the work whose result it is for.

    Raises:
        SkipSpecError: it does not end in .safetensors, or its folder is not there.
    """
    if file.suffix != ".safetensors" or not file.absolute().parent.is_dir():
        raise SkipSpecError(f"Cannot write {file}; need a name that ends in .safetensors, in a folder that is there.")


def save(cache: PromptCache, target: Target, file: Path) -> None:
    """Write the file under a temporary name and rename it.

    Raises:
        SkipSpecError: it cannot be written.
    """
    about = {
        "model": identity(target),
        "dtype": str(target.dtype),
        "kind": _kind(cache.kv),
        "layers": [(layer.offset, layer.forgotten) for layer in cache.kv.layers],
        "system": cache.system,
        "prompt": cache.prompt,
    }
    tensors = dict(tree_flatten([layer.rows for layer in cache.kv.layers], prefix=".rows"))
    tensors["ids"] = mx.array(cache.ids, dtype=mx.uint32)
    try:
        with whole_file(file) as temporary:
            mx.save_safetensors(str(temporary), tensors, {"format": SCHEMA, "about": json.dumps(about)})
    except (OSError, RuntimeError) as error:
        raise SkipSpecError(
            f"Writing {file} failed ({one_line(error)}); nothing was left behind. Make room or choose another place."
        ) from error


def load(file: Path, target: Target, make_kv: Callable[[], KV]) -> PromptCache:
    """Read a file, which must be of this model and of a cache like those `make_kv` makes.

    Raises:
        SkipSpecError: it is not, or it is damaged.
    """
    try:
        loaded: Any = mx.load(str(file), format="safetensors", return_metadata=True)
        tensors, metadata = loaded
        about = json.loads(metadata["about"]) if metadata.get("format") == SCHEMA else None
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise SkipSpecError(f"The prompt cache {file} cannot be read ({one_line(error)}). {AGAIN}") from error
    if about is None:
        raise SkipSpecError(f"{file} is no prompt cache of this version; need one that cache-prompt wrote. {AGAIN}")
    for what, has, needs in (
        ("holds rows of the model", about.get("model"), identity(target)),
        ("was computed in", about.get("dtype"), str(target.dtype)),
        ("keeps", about.get("kind"), _kind(make_kv())),
    ):
        if has != needs:
            raise SkipSpecError(
                f"The prompt cache {file} {what} {has}, and here that is {needs}; need the same model, dtype and cache "
                f"flags as when it was made. {AGAIN}"
            )
    try:
        return _read(tensors, about, target, make_kv)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise SkipSpecError(f"The prompt cache {file} is damaged ({one_line(error)}). {AGAIN}") from error


def identity(target: Target) -> str:
    """Names the model, its weights and how they are quantised: a hash of its settings and some of every tensor."""
    digest = hashlib.sha256(repr(target.args).encode())
    for name, weight in tree_flatten(target.model.parameters()):
        flat = weight.reshape(-1)
        some = flat[:: max(flat.size // PROBES, 1)][:PROBES]
        digest.update(f"{name} {weight.shape} {weight.dtype}".encode())
        digest.update(np.array(some.view(mx.uint8)).tobytes())
    return digest.hexdigest()[:12]


def _kind(kv: KV) -> str:
    """What rows a cache keeps, and in how many bits."""
    windows = {
        f"the first {window.keep} and the newest {window.size - window.keep} rows" if window else "all rows"
        for window in (layer.window for layer in kv.layers)
    }
    bits = {f" in {layer.bits} bits, groups of {layer.group_size}" for layer in kv.layers if layer.bits}
    return " and ".join(sorted(windows)) + "".join(bits)


def _read(
    tensors: dict[str, mx.array], about: dict[str, Any], target: Target, make_kv: Callable[[], KV]
) -> PromptCache:
    ids = tuple(int(token) for token in cast("list[int]", tensors.pop("ids").tolist()))
    if not all(0 <= token < target.vocab_size for token in ids):
        raise ValueError("token ids outside the vocabulary")
    sample, kv = make_kv(), make_kv()
    target(mx.array([0], dtype=mx.uint32), sample)  # lazy, and never computed: it tells what a row looks like
    held = tree_unflatten([(name.removeprefix("rows."), rows) for name, rows in tensors.items()])
    kv.layers = [
        _layer(one, offset, forgotten, rows)
        for one, rows, (offset, forgotten) in zip(sample.layers, held, about["layers"], strict=True)
    ]
    if {layer.offset for layer in kv.layers} != {len(ids)}:
        raise ValueError("rows of other tokens")
    mx.eval(kv.state)
    return PromptCache(ids, kv, about["system"], about["prompt"])


def _layer(one: LayerKV, offset: int, forgotten: int, rows: Sequence[mx.array]) -> LayerKV:
    """A layer like `one`, which holds a single row."""
    made = LayerKV.of(one, offset, forgotten, tuple(rows))
    wanted = [((*row.shape[:-2], offset - forgotten, row.shape[-1]), row.dtype) for row in one.rows]
    found = [(row.shape, row.dtype) for row in made.state]
    if found != wanted or not 0 <= forgotten <= offset or made.earliest > offset:
        raise ValueError("rows of another shape")
    return made
