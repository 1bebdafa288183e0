"""The command `bench`, on a tiny model: both sides answer, one line of JSON or a table comes out."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import checkpoint
import pytest
import tiny
from drafters import gap
from test_bench_stats import KEYS

from mlx_skipspec import bench_commands
from mlx_skipspec.bench import Bench, drafters_in
from mlx_skipspec.cli import main
from mlx_skipspec.drafters import FirstOf, NoDraft, PromptLookup
from mlx_skipspec.pace import Paced
from mlx_skipspec.prompts import even_sample
from mlx_skipspec.sampling import GREEDY

PROMPTS = [("a", "qa", "hello world the draft"), ("b", "qa", "any cache"), ("c", "code", "layer token layer token")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    checkpoint.write(folder / "model")
    lines = [json.dumps({"id": name, "category": task, "prompt": text}) for name, task, text in PROMPTS]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return folder


def run(monkeypatch: pytest.MonkeyPatch, home: Path, *options: str) -> None:
    arguments = ["bench", "--model", str(home / "model"), "--prompts", str(home / "prompts.jsonl"), "-m", "12"]
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", *arguments, *options])
    main()


@pytest.mark.parametrize(
    "options", [["--plan", "1,1"], ["--drafter", "lookup", "--max-kv-size", "16"], ["--drafter", "none"]], ids=str
)
def test_both_sides_say_the_same_and_are_timed(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    run(monkeypatch, home, "--json", "--repeat", "2", *options)
    made = json.loads(capsys.readouterr().out)
    assert list(made)[: len(KEYS)] == KEYS
    assert (made["prompts"], made["identical"], len(made["rows"])) == (3, 3, 6)
    assert list(made["by_task"]) == ["code", "qa"]
    assert made["verify_curve"][0] == 1.0
    assert len(made["verify_curve"]) == made["draft_tokens"] + 1
    assert set(made["by_source"]) <= set(made["draft_cost"])
    assert made["predicted_speedup"] > 0
    assert 0.5 < made["peak_memory_ratio"] < 2  # weights of a few KB: the cache, which grows by fewer rows, counts most
    assert "host" not in made["device"]


def test_people_get_a_table_and_the_progress_beside_it(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, home, "--drafter", "lookup", "--limit", "2")
    out, err = capsys.readouterr()
    assert "2/2 texts" in out
    assert "2/2 [" in err
    assert "predicted" in out


def test_an_interrupt_reports_what_there_is_so_far(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(monkeypatch, after=2)
    with pytest.raises(SystemExit) as left:
        run(monkeypatch, home, "--drafter", "lookup", "--json")
    assert left.value.code == 130
    assert json.loads(capsys.readouterr().out)["prompts"] == 2


def test_an_interrupt_before_the_first_figure_has_nothing_to_report(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(monkeypatch, after=0)
    with pytest.raises(SystemExit) as left:
        run(monkeypatch, home, "--drafter", "lookup", "--json")
    assert left.value.code == 130
    assert capsys.readouterr().out == ""


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    whole = Bench.pairs

    def pairs(self, items, repeat):
        for number, pair in enumerate(whole(self, items, repeat)):
            if number == after:
                raise KeyboardInterrupt
            yield pair

    monkeypatch.setattr(bench_commands.Bench, "pairs", pairs)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra `plot`")
@pytest.mark.filterwarnings("ignore")
def test_a_picture_is_drawn(monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path) -> None:
    run(monkeypatch, home, "--drafter", "lookup", "--plot", str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_drafters_that_guess_are_found_inside_those_that_ask_them() -> None:
    lookup, skip = PromptLookup(), gap(tiny.target(), GREEDY)
    assert drafters_in(FirstOf(lookup, Paced([skip]))) == [lookup, skip]
    assert drafters_in(NoDraft()) == []


@pytest.mark.parametrize(("limit", "expected"), [(None, "abcdef"), (9, "abcdef"), (6, "abcdef"), (3, "ace"), (1, "a")])
def test_a_sample_is_taken_from_all_over(limit: int | None, expected: str) -> None:
    assert list(even_sample("abcdef", limit)) == list(expected)
