"""A tokenizer, and text for it to fit on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import checkpoint
import numpy as np
from mlx_lm.utils import load_tokenizer


@cache
def tokenizer(template: bool = True) -> Any:
    made = checkpoint.byte_level()
    if not template:
        made.chat_template = None
    with TemporaryDirectory() as folder:
        return load_tokenizer(checkpoint.write(Path(folder), tokenizer=made))


@cache
def text(length: int = 24_000, seed: int = 0) -> str:
    words = np.random.default_rng(seed).choice([*checkpoint.WORDS.split(), "zebra,", "7", "ü\n"], length // 4)
    return " ".join(words)[:length]
