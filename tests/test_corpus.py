"""Text for the fit: windows of tokens from files of text and of JSON lines, and files that are neither."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import checkpoint
import numpy as np
import pytest
from training_text import text, tokenizer

from mlx_skipspec.convert.corpus import windows
from mlx_skipspec.errors import SkipSpecError


def letters(folder: Path, name: str, letter: str, count: int) -> Path:
    (folder / name).write_text(letter * count, encoding="utf-8")
    return folder / name


def test_windows_are_taken_from_the_files_in_turn_and_then_from_those_that_have_more(tmp_path: Path) -> None:
    files = [letters(tmp_path, name, name, count) for name, count in (("x", 35), ("y", 12), ("z", 20))]
    taken = ["".join(tokenizer().convert_ids_to_tokens(window.ids)) for window in windows(files, tokenizer(), 10)]
    assert taken == ["x" * 10, "y" * 10, "z" * 10, "x" * 10, "z" * 10, "x" * 10]


def test_windows_follow_each_other_without_a_gap_in_a_file_longer_than_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_skipspec.convert.corpus.CHUNK", 1000)
    (tmp_path / "long.txt").write_text(text(), encoding="utf-8")
    read = [token for window in windows([tmp_path / "long.txt"], tokenizer(), 50) for token in window.ids]
    assert text().startswith(tokenizer().decode(read))
    assert len(tokenizer().decode(read)) > len(text()) - 400


def jsonl(folder: Path, *items: Any) -> Path:
    file = folder / "some.jsonl"
    file.write_text(
        "".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items), encoding="utf-8"
    )
    return file


def test_lines_of_json_are_texts_or_go_through_the_chat_template(tmp_path: Path) -> None:
    file = jsonl(tmp_path, {"text": "abc"}, "", {"prompt": "hello", "answer": "world"}, {"prompt": "then"})
    want = "abc<|user|>hello</s><|assistant|>world</s><|user|>then</s><|assistant|>"
    length = len(tokenizer().encode(want, add_special_tokens=False))
    read = list(windows([file], tokenizer(), length))
    assert [tokenizer().decode(window.ids) for window in read] == [want]
    assert (read[0].ids[1], read[0].ids[3]) == (2, checkpoint.EOS)  # special tokens, not their letters


def test_without_a_chat_template_prompt_and_answer_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    file = jsonl(tmp_path, {"prompt": "hello", "answer": "world"})
    want = tokenizer(template=False).encode("hello\nworld\n", add_special_tokens=False)
    assert [window.ids for window in windows([file], tokenizer(template=False), len(want))] == [want]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "some.txt .*(cannot be read|is no file)"),
        (b"abc \xff\xfe", "some.txt is not UTF-8 text"),
        (b"too short", "some.txt has only . tokens; need at least one window of 50"),
        (b"", "some.txt has only 0 tokens"),
    ],
    ids=["missing", "not text", "too short", "empty"],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: bytes | None, message: str) -> None:
    good = letters(tmp_path, "good.txt", "g", 200)
    if content is not None:
        (tmp_path / "some.txt").write_bytes(content)
    with pytest.raises(SkipSpecError, match=message):
        list(windows([good, tmp_path / "some.txt"], tokenizer(), 50))


@pytest.mark.parametrize(("name", "body"), [("some.txt", "then we go"), ("some.jsonl", '{"text": "then we go"}')])
def test_the_mark_some_tools_put_in_front_of_a_text_is_not_part_of_it(tmp_path: Path, name: str, body: str) -> None:
    (tmp_path / name).write_text(body, encoding="utf-8-sig")
    length = len(tokenizer().encode("then we go", add_special_tokens=False))
    found = [tokenizer().decode(window.ids) for window in windows([tmp_path / name], tokenizer(), length)]
    assert found == ["then we go"]


def test_a_line_of_a_gigabyte_is_refused_without_reading_it(tmp_path: Path) -> None:
    with (tmp_path / "some.jsonl").open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    with pytest.raises(SkipSpecError, match=r"some.jsonl, line 1 is too long; need at most 4194304 characters"):
        list(windows([tmp_path / "some.jsonl"], tokenizer(), 50))
    assert tracemalloc.get_traced_memory()[1] < 1 << 26
    tracemalloc.stop()


def test_a_folder_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(SkipSpecError, match="cannot be read"):
        list(windows([tmp_path], tokenizer(), 50))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "some.jsonl, line 2 is not JSON"),
        ({"question": "hello"}, 'some.jsonl, line 2 has no "text", "messages" or "prompt"'),
        (["hello"], "line 2 has no"),
        ({"text": 3}, "line 2 has no"),
        ({"prompt": None}, "line 2 has no"),
        ({"prompt": "hello", "answer": 3}, 'line 2 has an "answer" of 3'),
        ({"messages": []}, 'line 2: "messages" is no list of'),
        ({"messages": [{"role": "user"}]}, 'line 2: "messages" is no list of'),
    ],
    ids=str,
)
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(SkipSpecError, match=message):
        list(windows([jsonl(tmp_path, {"text": "abc"}, line)], tokenizer(), 2))


def test_a_question_and_its_answer_share_a_window_if_they_fit_into_one(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    items = [{"prompt": "p" * chance.integers(1, 20), "answer": "a" * chance.integers(1, 20)} for _ in range(90)]
    found = list(windows([jsonl(tmp_path, *items)], tokenizer(), 64))
    whole = "".join(tokenizer().decode(window.ids) + "|" for window in found)
    starts = [tokenizer().decode(window.ids).startswith("<|user|>") for window in found]
    assert all(starts)
    missing = [i for i in items if f"<|user|>{i['prompt']}</s><|assistant|>{i['answer']}</s>" not in whole]
    assert len(missing) <= 4  # those that filled no window at the end


def test_a_window_of_a_question_alone_is_left_out(tmp_path: Path) -> None:
    items = [{"prompt": "p" * 70, "answer": "a" * 10}, {"prompt": "q" * 70, "answer": "b" * 30}]
    found = list(windows([jsonl(tmp_path, *items)], tokenizer(), 32))
    assert found
    assert all(any(window.scored) for window in found)
    with pytest.raises(SkipSpecError, match="no window of 32 tokens with part of an answer; need longer windows"):
        list(windows([jsonl(tmp_path, {"prompt": "p" * 70, "answer": "a"})], tokenizer(), 32))
