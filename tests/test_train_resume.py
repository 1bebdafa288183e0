"""A run of the torch trainer that was stopped goes on as if nothing had been."""

from __future__ import annotations

import contextlib
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

from training_runs import FAMILIES, QUICK, losses, make_shelf, train  # noqa: E402

from mlx_skipspec.artifacts import Sidecar  # noqa: E402
from mlx_skipspec.convert import checkpoints, training, world  # noqa: E402
from mlx_skipspec.errors import SkipSpecError  # noqa: E402


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shelf(tmp_path_factory.mktemp("shelf"))


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
