"""The fit: the W it finds is the best there is, it bridges the gap, and what is recorded about it is true."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
from mlx_skipspec.check import mlx_lm_model
from mlx_skipspec.convert import fit as fitting
from mlx_skipspec.convert.closed_form import RIDGE
from mlx_skipspec.convert.closed_form_mlx import LeastSquares
from mlx_skipspec.convert.corpus import windows
from mlx_skipspec.convert.fit import WINDOW, fit
from mlx_skipspec.decode import decode
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.hvc import HVC
from mlx_skipspec.loading import base_of
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.stats import Stats
from mlx_skipspec.target import Target

SIZE, DEPTH = tiny.CONFIG["hidden_size"], 4
HELD_OUT = 3  # instead of 8: less to measure


@cache
def target(family: str = "llama") -> Target:
    return tiny.target(family, num_hidden_layers=DEPTH, vocab_size=len(checkpoint.byte_level()))


def hidden_states(family: str, window: Sequence[int]) -> list[np.ndarray]:
    """The states between mlx-lm's own layers, the embedding first: sharing no code of ours, only weights."""
    model = mlx_lm_model(target(family)).model
    h = model.embed_tokens(mx.array(window)[None])
    states = [h]
    for layer in model.layers:
        h = layer(h, "causal", None)
        states.append(h)
    return [np.array(state[0], dtype=np.float64) for state in states]


def layer_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def features_and_gains(
    family: str, texts: Sequence[Sequence[int]], head: int, tail: int
) -> tuple[np.ndarray, np.ndarray]:
    """A row for each t > 0: [LN(x_t); LN(r_t)] with r_t the last state at t-1, and what the gap adds to x_t."""
    features, gains = [], []
    for window in texts:
        states = hidden_states(family, window)
        x, behind, last = states[head], states[DEPTH - tail], states[DEPTH]
        features.append(np.hstack([layer_norm(x[1:]), layer_norm(last[:-1])]))
        gains.append((behind - x)[1:])
    return np.vstack(features), np.vstack(gains)


@cache
def some_windows(count: int, length: int, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    ids = tokenizer().encode(text(seed=seed), add_special_tokens=False)
    return tuple(tuple(ids[i * length : (i + 1) * length]) for i in range(count))


def solved(family: str, head: int, tail: int, texts: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    sums = LeastSquares(target(family), SkipPlan.gap(DEPTH, head, tail))
    for window in texts:
        sums.add(window)
    return sums.solve()


@pytest.mark.parametrize(
    ("family", "head", "tail"),
    [("llama", 1, 1), ("llama", 1, 2), ("llama", 2, 0), ("llama", 0, 2), ("mistral", 1, 1), ("qwen3", 1, 1)],
)
def test_the_closed_form_is_the_least_squares_optimum(family: str, head: int, tail: int) -> None:
    """Ridge regression as ordinary least squares with √λ·I below the features, by numpy's lstsq."""
    texts = some_windows(6, 80)
    features, gains = features_and_gains(family, texts, head, tail)
    ridge = RIDGE * (features**2).sum(0).mean()
    padded = np.vstack([features, np.sqrt(ridge) * np.eye(2 * SIZE)])
    best, *_ = np.linalg.lstsq(padded, np.vstack([gains, np.zeros((2 * SIZE, SIZE))]), rcond=None)
    w = solved(family, head, tail, texts)["proj.weight"]

    def loss(w: np.ndarray) -> float:
        return float(((features @ w.T - gains) ** 2).sum() + ridge * (w**2).sum())

    assert loss(w) == pytest.approx(loss(best.T), rel=1e-4)
    np.testing.assert_allclose(w, best.T, atol=5e-3 * np.abs(best).max())
    assert loss(w) < 0.9 * loss(np.zeros_like(w))


def test_the_ridge_is_small_beside_the_text() -> None:
    """It is there for the directions no text has (a layer norm's output has no mean), and costs next to nothing."""
    texts = some_windows(6, 80)
    features, gains = features_and_gains("llama", texts, 1, 1)
    w = solved("llama", 1, 1, texts)["proj.weight"]
    bare, *_ = np.linalg.lstsq(features, gains, rcond=None)

    def error(w: np.ndarray) -> float:
        return float(((features @ w - gains) ** 2).sum())

    assert error(bare) <= error(w.T) < 1.01 * error(bare)


def test_the_layer_norms_start_at_scale_1_and_shift_0() -> None:
    tensors = solved("llama", 1, 1, some_windows(2, 80))
    for norm in ("ln_gap", "ln_prev"):
        assert (tensors[f"{norm}.weight"] == 1).all()
        assert (tensors[f"{norm}.bias"] == 0).all()
    HVC.from_tensors(tensors)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_on_other_text_the_bridge_comes_nearer_to_the_gap_than_skipping_does(family: str) -> None:
    tensors = solved(family, 1, 1, some_windows(12, 80))
    bridge = HVC.from_tensors(tensors)
    plain = bridged = 0.0
    for window in some_windows(3, 80, seed=1):
        states = hidden_states(family, window)
        x, behind, last = states[1][1:], states[DEPTH - 1][1:], states[DEPTH][:-1]
        y = np.array(bridge(mx.array(x[None].astype(np.float32)), mx.array(last[None].astype(np.float32)))[0])
        plain += ((x - behind) ** 2).sum()
        bridged += ((y - behind) ** 2).sum()
    assert bridged < 0.9 * plain


def test_hidden_states_that_are_not_finite_are_refused() -> None:
    sums = LeastSquares(target(), SkipPlan.gap(DEPTH, 1, 1))
    sums.add(some_windows(1, 80)[0])
    sums.equations.fg[0, 0] = np.inf
    with pytest.raises(SkipSpecError, match="NaN or infinite hidden states; load it with --dtype float32"):
        sums.solve()


@pytest.fixture(scope="module", autouse=True)
def few_held_out() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "HELD_OUT", HELD_OUT)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "words.txt"
    file.write_text(text(), encoding="utf-8")
    return file


def run(corpus: Path, out: Path, **options: Any) -> Sidecar:
    return fit(target(), tokenizer(), SkipPlan.gap(DEPTH, 1, 1), out, **({"files": [corpus], "tokens": 1024} | options))


@pytest.fixture(scope="module")
def fitted(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sidecar, Path]:
    out = tmp_path_factory.mktemp("fitted") / "sidecar"
    return run(corpus, out, name="tiny"), out


def test_the_sidecar_says_of_what_model_and_how_it_was_made(fitted: tuple[Sidecar, Path]) -> None:
    made, out = fitted
    assert Sidecar.load(out) == made
    assert made.base == base_of(target(), "tiny")
    assert (made.head, made.tail) == (1, 1)
    assert made.made_by == {
        "method": "least squares",
        "tokens": 4 * (WINDOW - 1),
        "ridge": RIDGE,
        "text": ["words.txt"],
    }


def test_the_fit_reads_the_windows_behind_those_it_measures_on(corpus: Path, fitted: tuple[Sidecar, Path]) -> None:
    read = [window.ids for window in itertools.islice(windows([corpus], tokenizer(), WINDOW), HELD_OUT + 4)]
    tensors = solved("llama", 1, 1, read[HELD_OUT:])
    assert all(np.array_equal(fitted[0].tensors[name], value) for name, value in tensors.items())


def test_the_acceptance_it_records_is_the_real_loops(corpus: Path, fitted: tuple[Sidecar, Path]) -> None:
    made, _ = fitted
    stats = Stats()
    for window in itertools.islice(windows([corpus], tokenizer(), WINDOW), HELD_OUT):
        drafter = LayerSkip(SkipPlan.gap(DEPTH, 1, 1), HVC.from_tensors(made.tensors))
        kv = target().make_kv()
        for step in decode(target(), kv, window.ids[: WINDOW // 4 + 1], drafter=drafter, draft_tokens=3, max_tokens=48):
            stats.add(step)
    assert list(made.acceptance_by_position) == stats.acceptance_by_position()
    assert len(made.acceptance_by_position) == 3
    assert stats.drafted > 50


def test_the_same_text_gives_the_same_bridge(corpus: Path, fitted: tuple[Sidecar, Path], tmp_path: Path) -> None:
    made, out = fitted
    again = run(corpus, tmp_path / "again", name="tiny")
    assert again == made
    for name in ("skipspec.json", "hvc.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()


def test_without_files_it_reads_the_text_every_python_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "measure", lambda *_: Stats())
    made = run(tmp_path, tmp_path / "out", files=(), tokens=512)
    assert made.made_by["tokens"] == 2 * (WINDOW - 1)
    assert len(made.made_by["text"]) == 1


def test_nothing_is_left_when_it_is_interrupted(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_fitted_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "short.txt").write_text(" ".join(["then"] * HELD_OUT * WINDOW), encoding="utf-8")
    with pytest.raises(SkipSpecError, match="exists; need a new folder"):
        run(corpus, tmp_path / "there")
    with pytest.raises(SkipSpecError, match="need at least 256"):
        run(corpus, tmp_path / "out", tokens=255)
    with pytest.raises(SkipSpecError, match="holds only 3 windows of 256 tokens; need more than 3"):
        run(corpus, tmp_path / "out", files=[tmp_path / "short.txt"])
    assert not (tmp_path / "out").exists()
