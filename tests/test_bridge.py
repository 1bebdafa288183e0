"""The bridge: its formula, its dtype, and the tensors that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny
from drafters import random_bridge
from mlx.utils import tree_flatten
from random_sidecar import SIZE, sidecar, tensors
from safetensors.numpy import save_file

from mlx_skipspec.artifacts import BRIDGE
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.drafting import choose_drafter
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.hvc import HVC
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.sampling import GREEDY


def test_the_bridge_is_the_formula() -> None:
    """y = x + W · [LN_gap(x); LN_prev(r)], in float64 with numpy."""
    random = np.random.default_rng(1)
    given = {
        name: random.normal(size=value.shape) + (1.0 if name.endswith("weight") else 0.0)
        for name, value in tensors().items()
    }
    x, r = 0.05 * random.normal(size=(2, 1, 5, SIZE))

    def layer_norm(values: np.ndarray, of: str) -> np.ndarray:
        centred = values - values.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)  # PyTorch's default
        return normed * given[f"{of}.weight"] + given[f"{of}.bias"]

    features = np.concatenate([layer_norm(x, "ln_gap"), layer_norm(r, "ln_prev")], axis=-1)
    want = x + features @ given["proj.weight"].T
    got = np.array(HVC.from_tensors(given)(mx.array(x.astype(np.float32)), mx.array(r.astype(np.float32))))
    assert given["proj.weight"].shape == (SIZE, 2 * SIZE)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_an_untrained_bridge_is_the_plain_skip() -> None:
    target, prompt = tiny.target(), tiny.prompt(0)
    plan = SkipPlan.gap(target.depth, 2, 2)
    x = mx.random.normal((1, 3, SIZE), key=mx.random.key(0))
    assert mx.array_equal(HVC(SIZE)(x, 5 * x + 1), x)
    guesses = []
    for bridge in (None, HVC(SIZE), random_bridge(SIZE)):
        drafter, kv = LayerSkip(plan, bridge, sampler=GREEDY), target.make_kv()
        drafter.begin(target, kv)
        drafter.observe(target(mx.array(prompt[:-1]), kv)[1][-1])
        guesses.append(drafter.draft(prompt, 6).tolist())
    assert guesses[0] == guesses[1] != guesses[2]


def test_a_bridge_computes_in_the_dtype_of_its_model() -> None:
    bridge = HVC.from_tensors(tensors(), mx.bfloat16)
    assert {value.dtype for _, value in tree_flatten(bridge.parameters())} == {mx.bfloat16}
    assert bridge(mx.zeros((1, 1, SIZE), mx.bfloat16), mx.zeros((1, 1, SIZE))).dtype == mx.bfloat16


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda given: given.pop("ln_prev.bias"), "need"),
        (lambda given: given.update(extra=np.zeros(2)), "extra"),
        (lambda given: given.update({"proj.weight": np.zeros((SIZE, SIZE))}), "\\(64, 128\\)"),
        (lambda given: given.clear(), "need"),
        (lambda given: given.update({"proj.weight": np.full((SIZE, 2 * SIZE), np.nan)}), "NaN or infinite"),
    ],
    ids=["one missing", "one too many", "another shape", "none", "not a number"],
)
def test_tensors_that_are_no_bridge_are_refused(spoil: Callable[[dict[str, Any]], Any], message: str) -> None:
    given = tensors()
    spoil(given)
    with pytest.raises(SkipSpecError, match=message):
        HVC.from_tensors(given)


def test_a_bridge_for_another_hidden_size_is_refused_with_the_sidecar(tmp_path: Path) -> None:
    target = tiny.target()
    sidecar(target).save(tmp_path / "sidecar")
    save_file({name: value.astype(np.float16) for name, value in tensors(32).items()}, tmp_path / "sidecar" / BRIDGE)
    with pytest.raises(SkipSpecError, match="is \\(32,\\); need \\(64,\\)"):
        choose_drafter(target, "skip", sidecar=tmp_path / "sidecar")
