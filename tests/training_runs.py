"""Short runs of the torch trainer, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoint
import numpy as np
from training_text import text

from mlx_skipspec.convert.train_hvc import command

QUICK = ["--window=32", "--batch=2", "--steps=8", "--lr=1e-2", "--streams=2", "--checkpoint-minutes=0"]
FAMILIES = ("llama", "qwen3")


def make_shelf(folder: Path) -> Path:
    """A model of each family and something to read."""
    for family in FAMILIES:
        checkpoint.write(folder / family, family)
    (folder / "words.txt").write_text(text(6000), encoding="utf-8")
    lines = [{"prompt": word} for word in ("hello world", "draft", "verify and accept", "the cache")]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def train(shelf: Path, out: Path, *options: str, family: str = "llama") -> None:
    arguments = ["--model", str(shelf / family), "--out", str(out), *QUICK, *options]
    if "--self-generate" not in options and "--data" not in options:
        arguments += ["--data", str(shelf / "words.txt")]
    if "--plan" not in options:
        arguments += ["--plan", "1,1"]
    command.main(arguments, standalone_mode=False)


def metrics(out: Path) -> list[dict[str, Any]]:
    lines = (out.parent / f"{out.name}.training" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(out: Path) -> np.ndarray:
    lines = metrics(out)
    assert [line["step"] for line in lines] == list(range(len(lines)))
    return np.array([line[plan]["loss"] for line in lines for plan in line if "," in plan])
