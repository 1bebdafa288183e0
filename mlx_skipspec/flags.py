"""Options that several commands share; importing them needs neither mlx nor torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FOLDER = click.Path(path_type=Path)


def options(*decorators: Callable[..., Any]) -> Callable[..., Any]:
    """Several options under one name."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


DTYPE = click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "checkpoint", "float32", "bfloat16", "float16"]),
    help="What to compute in; auto: the checkpoint's own on a GPU, float32 on a CPU.",
)
MODEL = options(
    click.option("--model", help="Model folder or hub id. Default: SmolLM2-135M-Instruct, fetched once."),
    DTYPE,
)
MAX_KV_SIZE = click.option(
    "--max-kv-size", type=click.IntRange(min=5), help="Cache so many rows: the first 4 and the newest."
)
DRAFTING = options(
    click.option(
        "--drafter",
        type=click.Choice(["auto", "none", "skip", "lookup"]),
        default="auto",
        show_default=True,
        help="Who guesses: the model's own layers (skip), the text so far (lookup), both (auto), nobody (none).",
    ),
    click.option("--draft-tokens", type=click.IntRange(1, 64), default=7, show_default=True, help="Longest guess."),
    click.option("--plan", metavar="A,B", help="Draft with the first A and last B layers. Default: the sidecar's."),
    click.option("--sidecar", type=FOLDER, help="Folder of a bridge. Default: one with the model, or one of ours."),
    click.option(
        "--head",
        type=click.Choice(["auto", "dense", "clusters", "subset", "ann"]),
        default="auto",
        show_default=True,
        help="What scores a skip's drafts: every row of the head, a kind that build-head built, or the fastest.",
    ),
    MAX_KV_SIZE,
)
TEMPLATE = options(
    click.option("--system-prompt", help="Put in front as the system's message."),
    click.option("--chat-template-config", metavar="JSON", help="Arguments of the chat template."),
    click.option(
        "--think/--no-think", default=None, help="Have a thinking model think first, or not. Default: as it is used to."
    ),
)
SAMPLING = options(
    click.option("--temp", type=float, default=0.0, show_default=True, help="0 takes the likeliest token."),
    click.option("--top-p", type=float, default=0.0, help="Nucleus sampling."),
    click.option("--top-k", type=int, default=0, help="Sample from the k likeliest."),
    click.option("--min-p", type=float, default=0.0, help="Drop what is less likely than min-p × the likeliest."),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option("--repetition-penalty", type=float, help="Above 1 discourages recent tokens."),
    click.option("--repetition-context-size", type=int, default=20, show_default=True),
    click.option("--logit-bias", metavar="JSON", help='Added to logits: {"token id": number, …}.'),
)
QUANTISED_KV = options(
    click.option("--kv-bits", type=int, help="Quantise the cache."),
    click.option("--kv-group-size", type=int, default=64, show_default=True),
)
PREFILL_STEP = click.option("--prefill-step-size", type=click.IntRange(1, 2**31 - 1), default=2048, show_default=True)
CACHE_FILE = click.option(
    "--prompt-cache-file", type=FOLDER, metavar="FILE", help="Begin with what cache-prompt prefilled."
)
ANSWERING = options(
    QUANTISED_KV,
    CACHE_FILE,
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated."),
    click.option("--recalibrate", is_flag=True, help="Measure again what passes and draft steps cost on this machine."),
    click.option(
        "--explain", is_flag=True, help="Say on stderr whenever the pace changes who drafts and how far, and why."
    ),
)
