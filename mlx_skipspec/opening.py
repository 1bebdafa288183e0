"""From flags to what is needed for an answer: the model, who drafts, how tokens are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_skipspec.api import encode
from mlx_skipspec.cli import note
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.kv import KV
from mlx_skipspec.loading import load
from mlx_skipspec.prompt_cache import PromptCache
from mlx_skipspec.prompt_cache_files import load as load_cache
from mlx_skipspec.prompts import chat_ids, templated
from mlx_skipspec.sampling import Sampler
from mlx_skipspec.target import Target

SAMPLING = ("top_p", "top_k", "min_p", "seed", "repetition_penalty", "repetition_context_size")
KINDS = ("max_kv_size", "kv_bits", "kv_group_size")


def open_model(model: str | None, dtype: str) -> tuple[Target, Any]:
    """The model people named, or the demo model; its weights stay on disk until all that is asked of it is checked."""
    if model is None:
        from mlx_skipspec.convert.demo import demo_model

        return load(demo_model(note), dtype=dtype, lazy=True)
    return load(model, dtype=dtype, lazy=True)


def take_sampler(flags: dict[str, Any]) -> Sampler:
    """The sampler the flags describe, which are taken out of them."""
    bias = read_json("--logit-bias", flags.pop("logit_bias"))
    try:
        pairs = tuple((int(token), float(value)) for token, value in bias.items())
    except (TypeError, ValueError, OverflowError):
        raise SkipSpecError(
            f"--logit-bias {str(bias)[:200]} is not {{token id: number}}; write e.g. '{{\"42\": -5}}'."
        ) from None
    return Sampler(temperature=flags.pop("temp"), logit_bias=pairs, **{name: flags.pop(name) for name in SAMPLING})


def take_drafting(flags: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `choose_drafter` and `Chooser` the flags give, which are taken out of them."""
    names = ("plan", "sidecar", "head", "recalibrate")
    return {"explain": note if flags.pop("explain") else None, **{name: flags.pop(name) for name in names}}


def take_template(flags: dict[str, Any], think: bool | None) -> dict[str, Any]:
    """Arguments of the chat template the flags give, which are taken out of them."""
    arguments = read_json("--chat-template-config", flags.pop("chat_template_config"))
    return arguments if think is None else arguments | {"enable_thinking": think}


def check_think(tokenizer: Any, think: bool | None) -> None:
    """Refuse a switch the model's template does not have.

    Raises:
        SkipSpecError: it renders the same either way.
    """
    asked = [{"role": "user", "content": "Well?"}]
    arguments = {"tokenize": False, "add_generation_prompt": True}
    if think is not None and templated(tokenizer, asked, **arguments, enable_thinking=True) == templated(
        tokenizer, asked, **arguments, enable_thinking=False
    ):
        raise SkipSpecError("This model's chat template can't turn thinking on or off; drop --think/--no-think.")


def encoder(
    tokenizer: Any, bare: bool, system: str | None, template: dict[str, Any], think: bool | None
) -> Callable[[str], list[int]]:
    """How a question becomes token ids: through the chat template, or as bare text.

    Raises:
        SkipSpecError: something is asked of a template that is not there.
    """
    if tokenizer.has_chat_template and not bare:
        check_think(tokenizer, think)
        return lambda text: chat_ids(tokenizer, text, system, template)
    if system or template:
        raise SkipSpecError(
            "Without a chat template there is no place for --system-prompt, --think or --chat-template-config."
        )
    return lambda text: encode(tokenizer, text)


def make_kv(target: Target, flags: dict[str, Any]) -> KV:
    """An empty cache whose rows depend on the tokens alone."""
    size, bits, group_size = (flags[name] for name in KINDS)
    return target.make_kv(size, bits, group_size, exact=True)


def open_cache(
    file: Path | None, target: Target, flags: dict[str, Any], system: str | None
) -> tuple[PromptCache | None, str | None]:
    """The prompt cache people named, if they did, and the system's message, which may be the cache's.

    Raises:
        SkipSpecError: it can't be used here, or another system's message is asked for.
    """
    if file is None:
        return None, system
    cache = load_cache(file, target, lambda: make_kv(target, flags))
    if system not in (None, cache.system):
        raise SkipSpecError(
            f"The prompt cache {file} begins with another system prompt; drop --system-prompt or make the cache again."
        )
    return cache, cache.system


def read_json(name: str, text: str | None) -> dict[str, Any]:
    """An option that holds a JSON object."""
    try:
        value = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SkipSpecError(f"{name} {str(text)[:200]!r} is no JSON object; write it like '{{\"key\": 1}}'.")
    return value
