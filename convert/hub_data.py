"""Texts of datasets on the Hugging Face hub, streamed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mlx_skipspec.errors import SkipSpecError, one_line

# The mix of the thesis "Skip, Search, Speculate".
DEFAULT_MIX = (
    "HuggingFaceTB/cosmopedia:stories",
    "HuggingFaceFW/fineweb-edu:sample-10BT",
    "MBZUAI/LaMini-instruction",
    "flytech/python-codes-25k",
    "roneneldan/TinyStories",
)
NAME = re.compile(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?")
FILES = (".txt", ".md", ".json", ".jsonl")  # what a mistyped file's name would end in
# What columns are called elsewhere, and what we call them.
COLUMNS = (("content", "text"), ("conversations", "messages"), ("instruction", "prompt"), ("question", "prompt"))
ANSWERS = ("answer", "response", "output", "completion")


def is_name(source: str) -> bool:
    """Whether this could be `owner/dataset` or `owner/dataset:config`."""
    return NAME.fullmatch(source) is not None and not source.endswith(FILES)


def items(name: str) -> Iterator[dict[str, Any]]:
    """The training split's rows as {"text"}, {"messages"} or {"prompt", "answer"}.

    Raises:
        SkipSpecError: no `datasets` package, or no such dataset within reach.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise SkipSpecError(
            f"Reading the dataset {name} needs the package datasets; pip install 'mlx-skipspec[train]', or give files."
        ) from None
    path, _, config = name.partition(":")
    try:
        for row in load_dataset(path, config or None, split="train", streaming=True):
            yield renamed(row)
    except Exception as error:  # the hub, its cache and its files fail in many ways
        raise SkipSpecError(
            f"The hub dataset {name} cannot be read ({one_line(error)}); need its name and a network, or give files."
        ) from error


def renamed(row: dict[str, Any]) -> dict[str, Any]:
    """A row under our names for its columns."""
    row = dict(row)
    if isinstance(row.get("text"), str):
        return {"text": row["text"]}
    for theirs, ours in COLUMNS:
        if theirs in row and ours not in row:
            row[ours] = row.pop(theirs)
    if isinstance(row.get("input"), str) and row["input"].strip() and isinstance(row.get("prompt"), str):
        row["prompt"] = f"{row['prompt']}\n\n{row['input']}"
    if answer := next((row[key] for key in ANSWERS if isinstance(row.get(key), str)), None):
        row["answer"] = answer
    return row
