"""Datasets of the hub: their rows under our names, and what is said when they are out of reach."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from training_text import tokenizer

from mlx_skipspec.convert import hub_data
from mlx_skipspec.convert.corpus import windows
from mlx_skipspec.errors import SkipSpecError


@pytest.mark.parametrize(
    ("row", "item"),
    [
        ({"text": "abc", "id": 3}, {"text": "abc"}),
        ({"content": "abc"}, {"text": "abc"}),
        ({"instruction": "Do", "response": "Done"}, {"prompt": "Do", "answer": "Done"}),
        ({"instruction": "Do", "input": "this", "output": "Done"}, {"prompt": "Do\n\nthis", "answer": "Done"}),
        ({"question": "Why", "answer": "So"}, {"prompt": "Why", "answer": "So"}),
        ({"conversations": [{"role": "user", "content": "hi"}]}, {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_columns_go_by_our_names(row: dict[str, Any], item: dict[str, Any]) -> None:
    renamed = hub_data.renamed(row)
    assert {key: renamed[key] for key in item} == item


def test_a_dataset_is_streamed_with_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: Any, **options: Any) -> Iterator[dict[str, str]]:
        asked.append((args, options))
        while True:
            yield {"text": "hello world, the draft"}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    found = list(islice(windows([], tokenizer(), 16, {"a/b:c": hub_data.items("a/b:c")}), 5))
    assert [len(window) for window in found] == [16] * 5
    assert asked == [(("a/b", "c"), {"split": "train", "streaming": True})]


def test_without_the_package_or_the_network_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SkipSpecError, match="needs the package datasets; pip install"):
        next(hub_data.items("a/b"))

    def load_dataset(*args: Any, **options: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(SkipSpecError, match=r"dataset a/b cannot be read \(no route\); need its name and a network"):
        next(hub_data.items("a/b"))


def test_a_name_is_told_from_a_path() -> None:
    assert hub_data.is_name("roneneldan/TinyStories")
    assert hub_data.is_name("HuggingFaceTB/cosmopedia:stories")
    assert not any(hub_data.is_name(name) for name in ("words.txt", "/words.txt", "a/b/c", "./a/b", ""))
