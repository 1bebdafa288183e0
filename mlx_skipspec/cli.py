"""The command line. Nothing heavy is imported before a command runs: `--help` needs neither mlx nor torch."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mlx_skipspec import __version__
from mlx_skipspec.convert.train_hvc import command as train_hvc
from mlx_skipspec.errors import SkipSpecError

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
    click.option("--max-kv-size", type=click.IntRange(min=5), help="Cache so many rows: the first 4 and the newest."),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="mlx-skipspec")
def cli() -> None:
    """Lossless self-speculative decoding: a model drafts with its own first and last layers and verifies itself."""


@cli.command()
@MODEL
@click.option("--prompt", "-p", required=True, help="The question; '-' reads standard input.")
@click.option("--system-prompt", help="Put in front as the system's message.")
@click.option("--ignore-chat-template", is_flag=True, help="Continue the bare text.")
@click.option("--chat-template-config", metavar="JSON", help="Arguments of the chat template.")
@click.option("--max-tokens", "-m", type=int, default=256, show_default=True, help="-1: until the answer ends.")
@click.option("--temp", type=float, default=0.0, show_default=True, help="0 takes the likeliest token.")
@click.option("--top-p", type=float, default=0.0, help="Nucleus sampling.")
@click.option("--top-k", type=int, default=0, help="Sample from the k likeliest.")
@click.option("--min-p", type=float, default=0.0, help="Drop what is less likely than min-p × the likeliest.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--repetition-penalty", type=float, help="Above 1 discourages recent tokens.")
@click.option("--repetition-context-size", type=int, default=20, show_default=True)
@click.option("--logit-bias", metavar="JSON", help='Added to logits: {"token id": number, …}.')
@DRAFTING
@click.option("--kv-bits", type=int, help="Quantise the cache.")
@click.option("--kv-group-size", type=int, default=64, show_default=True)
@click.option("--prefill-step-size", type=click.IntRange(1, 2**31 - 1), default=2048, show_default=True)
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated.")
@click.option("--recalibrate", is_flag=True, help="Measure again what passes and draft steps cost on this machine.")
@click.option(
    "--explain", is_flag=True, help="Say on stderr whenever the pace changes who drafts and how far, and why."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
def generate(**flags: Any) -> None:
    """Answer one prompt. Text goes to stdout, progress and figures to stderr."""
    from mlx_skipspec import commands

    commands.generate(**flags)


@cli.command()
@MODEL
@click.option("--prompts", type=FOLDER, required=True, help='JSONL with a "prompt" per line.')
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many.")
@click.option("--max-tokens", "-m", type=click.IntRange(min=1), default=64, show_default=True)
@DRAFTING
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(**flags: Any) -> None:
    """Compare greedy texts with mlx-lm's, plain and drafting. Exit 1 if one differs by more than a near-tie."""
    from mlx_skipspec import commands

    commands.check(**flags)


@cli.command()
@MODEL
@click.option("--prompts", type=FOLDER, required=True, help='JSONL with a "prompt" per line, its task in "category".')
@click.option("--limit", type=click.IntRange(min=1), help="An even sample of so many.")
@click.option("--max-tokens", "-m", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Times each is answered.")
@DRAFTING
@click.option("--json", "as_json_wanted", is_flag=True, help="Print one JSON object.")
@click.option("--plot", "plot_file", type=FOLDER, metavar="FILE", help="Draw it; needs the extra `plot`.")
def bench(**flags: Any) -> None:
    """Time greedy answers against mlx-lm's, around the same weights; Ctrl-C reports what there is so far."""
    from mlx_skipspec.blas import with_openblas

    blas = with_openblas()
    from mlx_skipspec import bench_commands

    bench_commands.bench(blas, **flags)


@cli.command()
@click.option("--model", help="Model folder or hub id, to measure what its passes cost.")
@DTYPE
@click.option("--json", "as_json_wanted", is_flag=True, help="Print one JSON object.")
def doctor(**flags: Any) -> None:
    """Say what this machine is, what a model costs on it and what speed-up to expect."""
    from mlx_skipspec import bench_commands

    bench_commands.doctor(**flags)


@cli.command()
@click.option("--hf-path", "--model", "hf_path", required=True, help="Checkpoint folder or hub id.")
@click.option("--out", "--mlx-path", "out", type=FOLDER, required=True, help="New folder.")
@click.option("--quantize", "-q", "quantise", is_flag=True, help="Quantise the weights.")
@click.option("--q-bits", type=int)
@click.option("--q-group-size", type=int)
@click.option("--q-mode", type=click.Choice(["affine", "mxfp4", "nvfp4", "mxfp8"]), default="affine", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: the checkpoint's own.")
@click.option("--hvc", type=FOLDER, help="Sidecar to put inside.")
def convert(**flags: Any) -> None:
    """Write a Hugging Face checkpoint, with its bridge, as one MLX folder."""
    from mlx_skipspec.convert.hf import convert as run

    run(**flags, notify=note)


@cli.command()
@MODEL
@click.option("--plan", default="2,2", show_default=True, metavar="A,B", help="Keep the first A and last B layers.")
@click.option(
    "--text", type=FOLDER, multiple=True, metavar="FILE...", help="Text or JSONL to fit on. Default: Python's help."
)
@click.argument("more_text", nargs=-1, type=FOLDER, metavar="")
@click.option("--tokens", type=int, default=60_000, show_default=True, help="How much of it.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    help="Train so long after the closed form; 0: leave it at that. Ctrl-C keeps the best bridge so far.",
)
@click.option("--out", type=FOLDER, required=True, help="New folder for the sidecar.")
def fit(text: tuple[Path, ...], more_text: tuple[Path, ...], **flags: Any) -> None:
    """Fit a bridge for a model on this machine: in closed form, then by training for some minutes."""
    from mlx_skipspec import commands

    commands.fit(text=text + more_text, **flags)


@cli.command("build-head")
@MODEL
@click.option("--kind", type=click.Choice(["clusters", "subset", "ann"]), required=True, help="What to build.")
@click.option(
    "--text", type=FOLDER, multiple=True, metavar="FILE...", help="Text or JSONL to build on. Default: Python's help."
)
@click.argument("more_text", nargs=-1, type=FOLDER, metavar="")
@click.option(
    "--out", "--sidecar", "out", type=FOLDER, required=True, help="The model's sidecar; a new one is a copy of its own."
)
def build_head(text: tuple[Path, ...], more_text: tuple[Path, ...], **flags: Any) -> None:
    """Build a cheaper head for drafts into a model's sidecar, and measure it there."""
    from mlx_skipspec import commands

    commands.build_head(text=text + more_text, **flags)


@cli.command()
@click.argument("sidecar", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(**flags: Any) -> None:
    """Say whose bridge a sidecar holds, how it was made and how well it drafts."""
    from mlx_skipspec import commands

    commands.inspect(**flags)


cli.add_command(train_hvc, "train-hvc")


def say(text: str, nl: bool = True) -> None:
    """Text of the answer, to standard output."""
    try:
        click.echo(text, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SkipSpecError(
            f"Standard output cannot be written ({error.strerror}); make room, or send it elsewhere."
        ) from error


def _let_go_of_stdout() -> None:
    """What a broken or full standard output did not take is dropped, or Python would try again and complain at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(line: str) -> None:
    """One line to the person, beside the text."""
    click.echo(line, err=True)


def main() -> None:
    """Run the command line; a SkipSpecError or a bad value, and nothing else, becomes one line and exit code 2."""
    logging.basicConfig(format="note: %(message)s", stream=sys.stderr)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # what matters of its warnings, our errors say
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to stop
    try:
        cli(standalone_mode=False)
    except SkipSpecError as error:
        note(f"error: {' '.join(str(error).splitlines())}")  # a name may have a line break in it
        sys.exit(2)
    except click.ClickException as error:
        if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
            note(f"error: {' '.join(error.format_message().splitlines())}")
        else:
            error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        note("interrupted")
        sys.exit(130)
    finally:
        _let_go_of_stdout()


def read_json(name: str, text: str | None) -> dict[str, Any]:
    """An option that holds a JSON object."""
    try:
        value = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SkipSpecError(f"{name} {str(text)[:200]!r} is no JSON object; write it like '{{\"key\": 1}}'.")
    return value
