"""Train bridges with PyTorch, on CUDA or on CPUs: `mlx-skipspec train-hvc …`, or with several processes

torchrun --nproc-per-node N -m mlx_skipspec.convert.train_hvc …
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mlx_skipspec.convert.objective import STREAMS

PATH = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--model", required=True, help="Hugging Face folder or hub id: Llama, Mistral, Qwen2 or Qwen3.")
@click.option(
    "--plan", "plans", multiple=True, default=["2,2"], show_default=True, metavar="A,B", help="May be repeated."
)
@click.option("--out", type=PATH, required=True, help="New sidecar folder; with several plans, OUT-A-B for each.")
@click.option("--data", multiple=True, metavar="FILE|DATASET", help="Text, JSONL or hub dataset. Default: see below.")
@click.option(
    "--self-generate", type=PATH, metavar="PROMPTS", help="Let the model answer these first; train on it too."
)
@click.option("--answers", type=PATH, help="Where its answers are kept for reuse. Default: OUT.answers.jsonl.")
@click.option("--answer-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Of its answers.")
@click.option(
    "--tokens", type=click.IntRange(min=1), default=25_600_000, show_default=True, help="Read so many at most."
)
@click.option("--window", type=click.IntRange(min=16), default=256, show_default=True, help="Tokens of a window.")
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), help="Instead of --epochs.")
@click.option("--streams", type=click.IntRange(1, 8), default=STREAMS, show_default=True, help="Draft steps unrolled.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Of a gated MLP beside the map.")
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Windows per process and pass.")
@click.option("--accumulate", type=click.IntRange(min=1), default=1, show_default=True, help="Passes per step.")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), default=2e-3, show_default=True)
@click.option("--warmup", type=click.IntRange(min=0), default=50, show_default=True, help="Steps.")
@click.option(
    "--dropout", type=click.FloatRange(0, 0.9), default=0.0, show_default=True, help="Of the bridge's inputs."
)
@click.option("--sampled-rows", type=click.IntRange(min=0), default=0, show_default=True, help="Of the head; 0: all.")
@click.option(
    "--from", "start", default="least-squares", show_default=True, help="Or zero, or the sidecar in a folder."
)
@click.option("--features", type=PATH, help="Keep the teacher's features here: faster on CPUs and over many epochs.")
@click.option("--checkpoint-minutes", type=click.FloatRange(min=0), default=10.0, show_default=True)
@click.option("--dtype", type=click.Choice(["auto", "bfloat16", "float32"]), default="auto", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def command(**options: Any) -> None:
    """Train bridges for a frozen model under the conditions of inference.

    Without --data, the mix of the thesis: cosmopedia, fineweb-edu, LaMini-instruction, python-codes and TinyStories.
    A run that was stopped (Ctrl-C, SIGTERM, kill) goes on when the same command is given again.
    """
    from mlx_skipspec.convert.training_job import train

    train(**options)


if __name__ == "__main__":
    from mlx_skipspec.cli import main

    sys.argv.insert(1, "train-hvc")
    main()
