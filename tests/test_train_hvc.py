"""The torch trainer: what it writes drafts here, a run that was stopped goes on as if nothing had been."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import checkpoint  # noqa: E402
from training_text import text  # noqa: E402

from mlx_skipspec.artifacts import Sidecar  # noqa: E402
from mlx_skipspec.convert import checkpoints, training, training_job, world  # noqa: E402
from mlx_skipspec.convert.train_hvc import command  # noqa: E402
from mlx_skipspec.drafting import choose_drafter  # noqa: E402
from mlx_skipspec.errors import SkipSpecError  # noqa: E402
from mlx_skipspec.loading import load  # noqa: E402

QUICK = [
    "--window",
    "32",
    "--batch",
    "2",
    "--steps",
    "8",
    "--lr",
    "1e-2",
    "--streams",
    "2",
    "--checkpoint-minutes",
    "0",
]
FAMILIES = ("llama", "qwen3")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each family and something to read."""
    folder = tmp_path_factory.mktemp("shelf")
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


def torchrun(shelf: Path, out: Path, family: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "mlx_skipspec.convert.train_hvc", "--model", str(shelf / family), "--out", str(out)]
    command += ["--plan", "1,1", "--data", str(shelf / "words.txt"), *QUICK, *options]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_killed_at_a_random_step_and_resumed_give_the_unbroken_runs_losses(
    shelf: Path, tmp_path: Path, family: str
) -> None:
    options = ["--accumulate", "2", "--sampled-rows", "30", "--rank", "8", "--dropout", "0.1"]
    whole = torchrun(shelf, tmp_path / "whole", family, *options)
    broken = torchrun(shelf, tmp_path / "broken", family, *options)
    step = int(np.random.default_rng().integers(2, 8))  # lines of metrics: the checkpoint of all but the last is there
    seen = tmp_path / "broken.training" / "metrics.jsonl"
    while broken.poll() is None and not (seen.exists() and len(seen.read_text().splitlines()) >= step):
        time.sleep(0.002)
    workers = subprocess.run(["pgrep", "-P", str(broken.pid)], capture_output=True, text=True).stdout.split()
    for process in (broken.pid, *map(int, workers)):  # it would leave them behind
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    broken.communicate()
    assert not (tmp_path / "broken").exists()
    assert whole.communicate()[1] is not None
    assert whole.returncode == 0
    resumed = torchrun(shelf, tmp_path / "broken", family, *options)
    said = resumed.communicate()[1].decode()
    assert resumed.returncode == 0, said
    assert "going on behind step" in said
    np.testing.assert_allclose(losses(tmp_path / "broken"), losses(tmp_path / "whole"), rtol=0, atol=1e-6)
    assert len(losses(tmp_path / "whole")) == 8
    one, other = (Sidecar.load(tmp_path / name) for name in ("whole", "broken"))
    assert one == other
    assert all(np.array_equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


def test_sigterm_saves_and_leaves(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = training.Trainer.step

    def stopped(self: training.Trainer, number: int) -> Any:
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "step", stopped)
        with pytest.raises(click.Abort):
            train(shelf, tmp_path / "out", "--checkpoint-minutes", "10")
    assert [folder.name for folder in (tmp_path / "out.training").glob("step-*")] == ["step-00000004"]
    train(shelf, tmp_path / "out")
    train(shelf, tmp_path / "whole")
    np.testing.assert_allclose(losses(tmp_path / "out"), losses(tmp_path / "whole"), rtol=0, atol=1e-6)


def test_a_signal_after_the_vote_on_stopping_waits_for_the_next_step(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what it says, that the command goes on from there, is true."""
    votes, vote = [], world.World.any

    def late(self: world.World, flag: bool) -> bool:
        votes.append(flag)
        found = vote(self, flag)
        if len(votes) == 7:  # two in each step
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(world.World, "any", late)
    with pytest.raises(click.Abort):
        train(shelf, tmp_path / "out", "--checkpoint-minutes", "10")
    taken = len(losses(tmp_path / "out"))
    assert [folder.name for folder in (tmp_path / "out.training").glob("step-*")] == [f"step-{taken:08d}"]


def test_metrics_of_a_run_that_ended_before_its_first_checkpoint_are_dropped(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "out.training").mkdir()
    (tmp_path / "out.training" / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    train(shelf, tmp_path / "out")
    assert len(losses(tmp_path / "out")) == 8


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_its_checkpoints(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(SkipSpecError, match=r"The loss of step \d is NaN or infinite; give a smaller --lr"):
        train(shelf, tmp_path / "out", "--lr", "1e30")
    assert list((tmp_path / "out.training").glob("step-*"))
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_the_checkpoint_before(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, calls = checkpoints.save_file, []

    def full(tensors: Any, file: Path) -> None:
        calls.append(file)
        if len(calls) == 3:
            file.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save(tensors, file)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", full)
        with pytest.raises(SkipSpecError, match="No space left on device"):
            train(shelf, tmp_path / "out")
    left = sorted(file.name for file in (tmp_path / "out.training").iterdir())
    assert left == ["metrics.jsonl", "step-00000001", "step-00000002"]
    train(shelf, tmp_path / "out")
    assert len(losses(tmp_path / "out")) == 8


def test_a_checkpoint_of_another_run_is_refused(shelf: Path, tmp_path: Path) -> None:
    train(shelf, tmp_path / "out", "--plan", "1,1")
    (tmp_path / "out").rename(tmp_path / "kept")
    with pytest.raises(SkipSpecError, match=r"another run: plans was \['1,1'\], now it is \['2,1'\]; give the same"):
        train(shelf, tmp_path / "out", "--plan", "2,1")
    (tmp_path / "out.training" / "step-00000008" / "run.json").write_text("{}")
    with pytest.raises(SkipSpecError, match="remove it to go on from the one before"):
        train(shelf, tmp_path / "out", "--plan", "1,1")


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
