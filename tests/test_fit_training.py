"""Training on the user's own machine: it helps, it can be stopped and taken up again, and what is best is kept."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import checkpoint
import mlx.core as mx
import numpy as np
import pytest
import tiny
from training_text import text, tokenizer

from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.convert import fit as fitting
from mlx_skipspec.convert import fit_training
from mlx_skipspec.convert.fit import fit
from mlx_skipspec.convert.fit_training import FitTraining
from mlx_skipspec.convert.objective import conditional
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.target import Target

DEPTH = 4
MINUTES = 0.2


@cache
def target(family: str = "llama") -> Target:
    return tiny.target(family, num_hidden_layers=DEPTH, vocab_size=len(checkpoint.byte_level()))


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short windows, and a clock on which every look takes a second: twelve steps are a fifth of a minute."""
    monkeypatch.setattr(fitting, "WINDOW", 32)
    monkeypatch.setattr(fitting, "HELD_OUT", 4)
    monkeypatch.setattr(fit_training, "SAMPLED", 60)
    monkeypatch.setattr(fit_training, "RATE", 5e-3)
    monkeypatch.setattr(fit_training.time, "monotonic", itertools.count().__next__)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text(text(24_000), encoding="utf-8")
    return tmp_path / "words.txt"


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Questions and answers, so that a window is scored in parts."""
    words = text(24_000).split()
    lines = [
        {"prompt": " ".join(words[i : i + 4]), "answer": " ".join(words[i + 4 : i + 9])} for i in range(0, 3600, 9)
    ]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return tmp_path / "words.jsonl"


def run(corpus: Path, out: Path, family: str = "llama", plan: tuple[int, int] = (1, 1), **options: Any) -> Sidecar:
    given = {"files": [corpus], "tokens": 1024, "minutes": MINUTES} | options
    return fit(target(family), tokenizer(), SkipPlan.gap(DEPTH, *plan), out, **given)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_training_lowers_the_loss_on_text_it_has_not_seen(
    family: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    look = FitTraining._look

    def noted(self: FitTraining) -> None:
        found = [self._losses(self.bridge, *window, None, 0.0)[0].item() for window in self.held_out]
        losses.append(np.mean(found))
        look(self)

    monkeypatch.setattr(FitTraining, "_look", noted)
    made = run(corpus, tmp_path / "out", family, minutes=1.0, tokens=6000)
    assert losses[-1] < 0.99 * losses[0]
    assert made.made_by["method"] == "unrolled training from least squares"
    assert made.made_by["steps"] == 60
    assert len(made.made_by["start"]["acceptance_by_position"]) == len(made.acceptance_by_position) == 3
    assert Sidecar.load(tmp_path / "out") == made
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "words.txt"]


def test_stopped_and_taken_up_again_it_makes_the_same_bridge(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FitTraining.step

    def killed(self: FitTraining) -> float:
        if self.progress.step == 7:
            raise MemoryError
        return step(self)

    whole = run(corpus, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(FitTraining, "step", killed)
        with pytest.raises(MemoryError):
            run(corpus, tmp_path / "broken")
    assert (tmp_path / "broken.training").is_dir()
    read: list[int] = []
    monkeypatch.setattr(fitting.LeastSquares, "add", lambda *_: read.append(1))
    broken = run(corpus, tmp_path / "broken")
    assert not read  # features and closed form were there
    assert broken == whole
    assert all(np.array_equal(broken.tensors[name], whole.tensors[name]) for name in whole.tensors)


def test_ctrl_c_keeps_the_best_bridge_so_far(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = FitTraining.step

    def interrupted(self: FitTraining) -> float:
        if self.progress.step == 5:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(FitTraining, "step", interrupted)
    made = run(corpus, tmp_path / "out")
    assert made.made_by["steps"] == 5
    assert Sidecar.load(tmp_path / "out") == made


def test_the_best_bridge_is_kept_not_the_last(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate that ruins it, what remains is the closed form."""
    monkeypatch.setattr(fit_training, "RATE", 10.0)
    trained, start = run(corpus, tmp_path / "out"), run(corpus, tmp_path / "start", minutes=0)
    assert all(np.allclose(trained.tensors[name], start.tensors[name], atol=1e-6) for name in start.tensors)


def test_a_loss_that_is_not_finite_is_refused_and_the_checkpoint_stays(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = FitTraining._losses

    def bad(self: FitTraining, bridge: Any, given: Any, scored: Any, rows: mx.array | None, weight: Any) -> Any:
        loss, hits = losses(self, bridge, given, scored, rows, weight)
        return (loss * mx.nan if rows is not None and self.progress.step == 6 else loss), hits

    monkeypatch.setattr(FitTraining, "_losses", bad)
    with pytest.raises(SkipSpecError, match=r"The loss of step 6 is NaN or infinite; fit with --dtype float32"):
        run(corpus, tmp_path / "out")
    assert list((tmp_path / "out.training").glob("step-*"))
    assert not (tmp_path / "out").exists()


def test_a_training_of_another_plan_or_text_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out.training").mkdir()
    run(corpus, tmp_path / "other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting.Sidecar, "save", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(corpus, tmp_path / "out")
    with pytest.raises(SkipSpecError, match=r"another run: plan was '1,1', now it is '2,1'; give the same again"):
        run(corpus, tmp_path / "out", plan=(2, 1))
    with pytest.raises(SkipSpecError, match=r"another run: text was"):
        run(corpus, tmp_path / "out", tokens=512)


def test_it_removes_only_what_it_kept_itself(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out.training").mkdir()
    (tmp_path / "out.training" / "notes.txt").touch()
    run(corpus, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out.training").iterdir()] == ["notes.txt"]


def test_a_fit_without_training_leaves_the_training_of_somebody_else(corpus: Path, tmp_path: Path) -> None:
    """`train-hvc` keeps its checkpoints under the same name."""
    checkpoint = tmp_path / "out.training" / "step-00000100" / "state.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    run(corpus, tmp_path / "out", minutes=0)
    assert checkpoint.is_file()


def test_agreement_is_conditional_along_each_chain() -> None:
    random = np.random.default_rng(0)
    hits, scored = random.random((3, 2, 9)) < 0.6, random.random((2, 9)) < 0.8
    reached, counts = [0, 0, 0], [0, 0, 0]
    for window, begin in itertools.product(range(2), range(1, 9)):
        for s in range(3):
            if begin + s >= 9 or not scored[window, begin + s]:
                break
            reached[s] += 1
            if not hits[s, window, begin + s]:
                break
            counts[s] += 1
    assert conditional(hits, scored) == pytest.approx([c / r for c, r in zip(counts, reached, strict=True)])


def test_of_chats_only_what_is_scored_is_trained_and_measured_on(chats: Path, tmp_path: Path) -> None:
    """The loss and agreement of a training, against what its streams give at every position."""
    seen: list[FitTraining] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitTraining, "_save", lambda self: seen.append(self))
        made = run(chats, tmp_path / "out", minutes=1.0, tokens=3000)
    training = seen[-1]
    assert len(made.acceptance_by_position) == 3
    hits, means, masks = [], [], []
    for window, scored in training.held_out:
        assert 0 < scored.sum() < scored.size
        loss, hit = training._losses(training.bridge, window, scored, None, 0.0)
        every = np.ones_like(scored)
        whole_loss = training._losses(training.bridge, window, every, None, 0.0)
        everywhere = np.array(whole_loss[1]).reshape(3, *scored.shape)
        assert (np.array(hit) == everywhere[:, scored]).all()
        assert loss.item() != pytest.approx(whole_loss[0].item(), rel=1e-3)
        hits.append(everywhere)
        masks.append(scored)
        means.append(loss.item())
    assert training.agreement() == pytest.approx(conditional(np.concatenate(hits, axis=1), np.concatenate(masks)))
    assert np.isfinite(means).all()
