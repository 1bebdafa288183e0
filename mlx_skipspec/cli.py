"""The command line. Nothing heavy is imported before a command runs: `--help` needs neither mlx nor torch."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from mlx_skipspec import __version__
from mlx_skipspec.convert.train_hvc import command as train_hvc
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.flags import (
    ANSWERING,
    DRAFTING,
    DTYPE,
    FOLDER,
    MAX_KV_SIZE,
    MODEL,
    PREFILL_STEP,
    QUANTISED_KV,
    SAMPLING,
    TEMPLATE,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="mlx-skipspec")
def cli() -> None:
    """Lossless self-speculative decoding: a model drafts with its own first and last layers and verifies itself."""


@cli.command()
@MODEL
@click.option("--prompt", "-p", required=True, help="The question; '-' reads standard input.")
@click.option("--ignore-chat-template", is_flag=True, help="Continue the bare text.")
@TEMPLATE
@click.option("--max-tokens", "-m", type=int, default=256, show_default=True, help="-1: until the answer ends.")
@SAMPLING
@DRAFTING
@ANSWERING
@PREFILL_STEP
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
def generate(**given: Any) -> None:
    """Answer one prompt. Text goes to stdout, progress and figures to stderr."""
    from mlx_skipspec import commands

    commands.generate(**given)


@cli.command()
@MODEL
@TEMPLATE
@click.option("--max-tokens", "-m", type=int, default=-1, show_default=True, help="Of an answer; -1: until it ends.")
@SAMPLING
@DRAFTING
@ANSWERING
@click.option(
    "--prefill-step-size",
    type=click.IntRange(1, 2**31 - 1),
    default=512,
    show_default=True,
    help="Tokens of a prompt between two looks for Ctrl-C.",
)
@click.option("--resume", type=FOLDER, metavar="FILE", help="Go on with a conversation that was kept, and keep it.")
@click.option("--save", type=FOLDER, metavar="FILE", help="Keep the conversation in this file, after every turn.")
@click.option("--show-drafts", is_flag=True, help="Colour tokens by who guessed them.")
@click.option("--hide-thoughts", is_flag=True, help="Show a thinking model's answers only.")
def chat(**given: Any) -> None:
    """Talk with a model. /help lists what can be done; over a pipe, every line is a question."""
    from mlx_skipspec import chat_start

    chat_start.chat(**given)


@cli.command("cache-prompt")
@MODEL
@click.option("--prompt", "-p", default="", help="What the questions will begin with; '-' reads standard input.")
@click.option("--ignore-chat-template", is_flag=True, help="It is the beginning of bare text.")
@TEMPLATE
@MAX_KV_SIZE
@QUANTISED_KV
@PREFILL_STEP
@click.option("--prompt-cache-file", type=FOLDER, metavar="FILE", required=True, help="A .safetensors file to write.")
def cache_prompt(**given: Any) -> None:
    """Prefill the beginning of prompts once, and keep its cache in a file for `generate` and `chat`."""
    from mlx_skipspec import commands

    commands.cache_prompt(**given)


@cli.command()
@MODEL
@click.option("--prompts", type=FOLDER, required=True, help='JSONL with a "prompt" per line.')
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many.")
@click.option("--max-tokens", "-m", type=click.IntRange(min=1), default=64, show_default=True)
@DRAFTING
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(**given: Any) -> None:
    """Compare greedy texts with mlx-lm's, plain and drafting. Exit 1 if one differs by more than a near-tie."""
    from mlx_skipspec import commands

    commands.check(**given)


@cli.command()
@MODEL
@click.option("--prompts", type=FOLDER, required=True, help='JSONL with a "prompt" per line, its task in "category".')
@click.option("--limit", type=click.IntRange(min=1), help="An even sample of so many.")
@click.option("--max-tokens", "-m", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Times each is answered.")
@DRAFTING
@click.option("--json", "as_json_wanted", is_flag=True, help="Print one JSON object.")
@click.option("--plot", "plot_file", type=FOLDER, metavar="FILE", help="Draw it; needs the extra `plot`.")
def bench(**given: Any) -> None:
    """Time greedy answers against mlx-lm's, around the same weights; Ctrl-C reports what there is so far."""
    from mlx_skipspec.blas import with_openblas

    blas = with_openblas()
    from mlx_skipspec import bench_commands

    bench_commands.bench(blas, **given)


@cli.command()
@click.option("--model", help="Model folder or hub id, to measure what its passes cost.")
@DTYPE
@click.option("--json", "as_json_wanted", is_flag=True, help="Print one JSON object.")
def doctor(**given: Any) -> None:
    """Say what this machine is, what a model costs on it and what speed-up to expect."""
    from mlx_skipspec import bench_commands

    bench_commands.doctor(**given)


@cli.command()
@click.option("--hf-path", "--model", "hf_path", required=True, help="Checkpoint folder or hub id.")
@click.option("--out", "--mlx-path", "out", type=FOLDER, required=True, help="New folder.")
@click.option("--quantize", "-q", "quantise", is_flag=True, help="Quantise the weights.")
@click.option("--q-bits", type=int)
@click.option("--q-group-size", type=int)
@click.option("--q-mode", type=click.Choice(["affine", "mxfp4", "nvfp4", "mxfp8"]), default="affine", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: the checkpoint's own.")
@click.option("--hvc", type=FOLDER, help="Sidecar to put inside.")
def convert(**given: Any) -> None:
    """Write a Hugging Face checkpoint, with its bridge, as one MLX folder."""
    from mlx_skipspec.convert.hf import convert as run

    run(**given, notify=note)


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
def fit(text: tuple[Path, ...], more_text: tuple[Path, ...], **given: Any) -> None:
    """Fit a bridge for a model on this machine: in closed form, then by training for some minutes."""
    from mlx_skipspec import commands

    commands.fit(text=text + more_text, **given)


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
def build_head(text: tuple[Path, ...], more_text: tuple[Path, ...], **given: Any) -> None:
    """Build a cheaper head for drafts into a model's sidecar, and measure it there."""
    from mlx_skipspec import commands

    commands.build_head(text=text + more_text, **given)


@cli.command()
@click.argument("sidecar", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(**given: Any) -> None:
    """Say whose bridge a sidecar holds, how it was made and how well it drafts."""
    from mlx_skipspec import commands

    commands.inspect(**given)


cli.add_command(train_hvc, "train-hvc")


_within_a_line = False  # of the answer


def say(text: str, nl: bool = True) -> None:
    """Text of the answer, to standard output."""
    global _within_a_line
    if text or nl:
        _within_a_line = not (nl or text.endswith("\n"))
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
    """One line to the person, beside the text; on a terminal that shows both it is a line of its own."""
    global _within_a_line
    if _within_a_line and all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        click.echo(err=True)
        _within_a_line = False
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
