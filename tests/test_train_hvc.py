"""The torch trainer: what it writes drafts here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from training_runs import FAMILIES, losses, make_shelf, train  # noqa: E402

from mlx_skipspec.artifacts import Sidecar  # noqa: E402
from mlx_skipspec.convert import training_job  # noqa: E402
from mlx_skipspec.convert.train_hvc import command  # noqa: E402
from mlx_skipspec.drafting import choose_drafter  # noqa: E402
from mlx_skipspec.errors import SkipSpecError  # noqa: E402
from mlx_skipspec.loading import load  # noqa: E402


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shelf(tmp_path_factory.mktemp("shelf"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rank", ["0", "24"])
def test_it_trains_several_plans_and_their_sidecars_draft(shelf: Path, tmp_path: Path, family: str, rank: str) -> None:
    plans = ["--plan", "1,1", "--plan", "2,1"]
    train(shelf, tmp_path / "out", *plans, "--rank", rank, "--sampled-rows", "40", "--steps", "30", family=family)
    mean = losses(tmp_path / "out").reshape(30, 2, 2)
    assert mean[-8:].mean() < 0.98 * mean[:8].mean()
    target, _ = load(shelf / family)
    for plan in ("1,1", "2,1"):
        folder = tmp_path / f"out-{plan.replace(',', '-')}"
        sidecar = Sidecar.load(folder)
        assert sidecar.kind == ("hvc" if rank == "0" else "hvc-mlp")
        assert len(sidecar.acceptance_by_position) == 3
        assert sidecar.made_by["steps"] == 30
        assert len(sidecar.made_by["start"]["acceptance_by_position"]) == 3
        assert choose_drafter(target, "skip", sidecar=folder).mode == f"skip({plan})+hvc"


def test_the_start_is_least_squares(shelf: Path, tmp_path: Path) -> None:
    """From there the first loss is lower than from nothing, which is a bare skip."""
    train(shelf, tmp_path / "a", "--steps", "1")
    train(shelf, tmp_path / "b", "--steps", "1", "--from", "zero")
    assert losses(tmp_path / "a").mean() < losses(tmp_path / "b").mean()


def test_it_goes_on_from_a_sidecar(shelf: Path, tmp_path: Path) -> None:
    train(shelf, tmp_path / "a", "--rank", "8")
    train(shelf, tmp_path / "b", "--rank", "8", "--from", str(tmp_path / "a"))
    one, other = (Sidecar.load(tmp_path / name) for name in ("a", "b"))
    assert other.made_by["start"]["acceptance_by_position"] == pytest.approx(one.acceptance_by_position, abs=0.01)
    for options in (["--rank", "4"], ["--plan", "2,1", "--rank", "8"]):
        with pytest.raises(SkipSpecError, match="has plan 1,1 and rank 8; asked for are"):
            train(shelf, tmp_path / "c", "--from", str(tmp_path / "a"), *options)
    with pytest.raises(SkipSpecError, match="--from nowhere is no folder"):
        train(shelf, tmp_path / "c", "--from", "nowhere")


def test_features_from_disk_train_like_those_from_the_teacher(shelf: Path, tmp_path: Path) -> None:
    train(shelf, tmp_path / "a")
    for name in ("b", "c"):  # the second time they are there
        train(shelf, tmp_path / name, "--features", str(tmp_path / "features"))
        np.testing.assert_allclose(losses(tmp_path / name), losses(tmp_path / "a"), rtol=2e-3)
    with pytest.raises(SkipSpecError, match="features of another model, text or plan"):
        train(shelf, tmp_path / "d", "--features", str(tmp_path / "features"), "--window", "16")


def test_features_on_disk_serve_a_run_that_needs_fewer(shelf: Path, tmp_path: Path) -> None:
    features = ["--features", str(tmp_path / "features")]
    train(shelf, tmp_path / "a", "--plan", "1,1", "--plan", "2,1", *features)
    train(shelf, tmp_path / "b", "--plan", "2,1", *features)
    with pytest.raises(SkipSpecError, match="features of another model, text or plan"):
        train(shelf, tmp_path / "c", "--plan", "1,2", *features)


def test_the_model_answers_prompts_and_is_trained_on_that(shelf: Path, tmp_path: Path) -> None:
    asked = ["--self-generate", str(shelf / "prompts.jsonl"), "--answer-tokens", "200"]
    train(shelf, tmp_path / "out", *asked, "--steps", "2", "--window", "16")
    answers = tmp_path / "out.answers.jsonl"
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert sorted(line["prompt"] for line in lines) == ["draft", "hello world", "the cache", "verify and accept"]
    before = answers.read_bytes()
    answers.write_bytes(before[: before.index(b"\n") + 1] + b'{"prompt": "draft", "ans')  # as a kill leaves it
    train(shelf, tmp_path / "again", *asked, "--steps", "2", "--window", "16", "--answers", str(answers))
    assert sorted(answers.read_bytes().splitlines()) == sorted(before.splitlines())


def test_torchrun_leaves_every_option_to_the_trainer() -> None:
    from torch.distributed.run import get_args_parser

    for option in (name for parameter in command.params for name in parameter.opts):
        rest = get_args_parser().parse_args(["-m", "trainer", option, "x"])
        assert (rest.training_script, rest.training_script_args) == ("trainer", [option, "x"])


BAD = {
    "empty.txt": (b"", "has only 0 tokens"),
    "binary.txt": (b"\xff\xfe" * 1000, "is not UTF-8 text"),
    "no-key.jsonl": (b'{"body": "hello"}', 'has no "text", "messages" or "prompt"'),
    "long.jsonl": (b'{"text": "' + b"z" * 10_000_000 + b'"}', "need at most 4194304"),
    "short.txt": (b"hello", "need at least one window of 32"),
    "few.txt": (b"z" * 32 * 16, "need more than 16"),
    "missing.txt": (None, "is no file"),
}


@pytest.mark.parametrize("name", BAD)
def test_data_nothing_can_be_trained_on(shelf: Path, tmp_path: Path, name: str) -> None:
    body, message = BAD[name]
    if body is not None:
        (tmp_path / name).write_bytes(body)
    with pytest.raises(SkipSpecError, match=message):
        train(shelf, tmp_path / "out", "--data", str(tmp_path / name))
    assert {file.name for file in tmp_path.iterdir()} <= {name}


def test_a_dataset_of_the_hub_is_told_from_a_file() -> None:
    files, datasets = training_job.sources(["roneneldan/TinyStories", __file__, "a/b:c"], None)
    assert (files, datasets) == ([Path(__file__)], ["roneneldan/TinyStories", "a/b:c"])
    assert len(training_job.sources([], None)[1]) == 5
    assert training_job.sources([], Path(__file__)) == ([], [])


def test_it_never_imports_mlx() -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(['mlx', 'mlx.core', 'mlx_lm'])); "
    code += "import mlx_skipspec.convert.training_job"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
