"""`cache-prompt`, and what answers with its file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import checkpoint
import pytest

from mlx_skipspec.cli import main

Run = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("cache") / "model")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Run:
    """Runs a command; what it wrote to standard output and error."""

    def run(command: str, *arguments: object) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["mlx-skipspec", command, "--model", str(folder), *map(str, arguments)])
        capfd.readouterr()
        main()
        return capfd.readouterr()

    return run


@pytest.mark.parametrize("kind", [(), ("--kv-bits", 8, "--kv-group-size", 32)], ids=["whole", "quantised"])
def test_generate_says_on_it_what_it_says_to_the_whole_prompt(
    run: Run, tmp_path: Path, kind: tuple[object, ...]
) -> None:
    file = tmp_path / "c.safetensors"
    _, told = run("cache-prompt", "-p", "the draft and then", *kind, "--prompt-cache-file", file)
    assert f"wrote {file}: the cache of" in told
    flags = (*kind, "-m", 12, "--json", "--drafter", "lookup")
    kept, told = run("generate", "-p", " hello", *flags, "--prompt-cache-file", file)
    whole, _ = run("generate", "-p", "the draft and then hello", *flags)
    assert "tokens serve" in told
    assert json.loads(kept)["tokens"] == json.loads(whole)["tokens"]


def test_it_is_refused_for_what_it_is_not(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.safetensors"
    run("cache-prompt", "-p", "hello world", "--system-prompt", "be kind", "--prompt-cache-file", file)
    for asking, why in (
        (("generate", "-p", "hi", "--max-kv-size", 8), "all rows"),
        (("generate", "-p", "hi", "--ignore-chat-template"), "no place for --system-prompt"),
        (("chat", "--system-prompt", "be rude"), "another system prompt"),
    ):
        with pytest.raises(SystemExit, match="2"):
            run(*asking, "--prompt-cache-file", file)
        assert why in capfd.readouterr().err


def test_a_conversation_begins_on_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    file, talk, asked = tmp_path / "c.safetensors", tmp_path / "talk.jsonl", tmp_path / "asked"
    run("cache-prompt", "-p", "the draft and then", "--system-prompt", "be kind", "--prompt-cache-file", file)
    asked.write_text(" hello\n/stats\n")
    with asked.open() as lines:
        monkeypatch.setattr(sys, "stdin", lines)
        _, told = run("chat", "--prompt-cache-file", file, "-m", 4, "--drafter", "none", "--save", talk)
    assert [json.loads(line)["content"] for line in talk.read_text().splitlines()][:2] == [
        "be kind",
        "the draft and then hello",
    ]
    new = int(told.split("new in the last prompt: ")[1].split()[0])
    assert 0 < new < 15 < int(told.split("context ")[1].split()[0])
