"""Sidecars: what is written is read, by the model it belongs to and by no other; and the bridge's own formula."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny
from drafters import random_bridge
from mlx.utils import tree_flatten, tree_map
from safetensors.numpy import load_file, save_file

from mlx_skipspec import artifacts
from mlx_skipspec.artifacts import BRIDGE, MANIFEST, SAME_BASE, Base, Sidecar
from mlx_skipspec.drafters import LayerSkip
from mlx_skipspec.drafting import choose_drafter, find_sidecar
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.hvc import HVC
from mlx_skipspec.loading import base_of, load_target
from mlx_skipspec.plan import SkipPlan
from mlx_skipspec.sampling import GREEDY
from mlx_skipspec.target import Target

SIZE = tiny.CONFIG["hidden_size"]


def tensors(size: int = SIZE) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in tree_flatten(random_bridge(size).parameters())}


def sidecar(target: Target, **changes: Any) -> Sidecar:
    made = Sidecar(
        base=base_of(target, "tiny"),
        head=2,
        tail=2,
        tensors=tensors(),
        made_by={"method": "chance", "tokens": 7, "text": ["a.txt"]},
        acceptance_by_position=(0.5, 0.25, None),
    )
    return replace(made, **changes)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = sidecar(tiny.target())
    made.save(tmp_path / "sidecar")
    read = Sidecar.load(tmp_path / "sidecar")
    assert read == made
    assert {name: value.dtype for name, value in read.tensors.items()} == dict.fromkeys(made.tensors, np.float16)
    assert all(np.array_equal(value, made.tensors[name].astype(np.float16)) for name, value in read.tensors.items())


def test_the_manifest_says_all_there_is_to_know_in_plain_json(tmp_path: Path) -> None:
    sidecar(tiny.target()).save(tmp_path / "sidecar")
    manifest = json.loads((tmp_path / "sidecar" / MANIFEST).read_text(encoding="utf-8"))
    fingerprint = manifest["base"].pop("fingerprint")
    assert len(fingerprint) == 4 * artifacts.PROBES
    assert manifest == {
        "schema": 1,
        "kind": "hvc",
        "base": {"name": "tiny", "depth": 6, "hidden_size": 64, "vocab_size": 96},
        "head": 2,
        "tail": 2,
        "made_by": {"method": "chance", "tokens": 7, "text": ["a.txt"]},
        "acceptance_by_position": [0.5, 0.25, None],
    }
    assert sorted(path.name for path in (tmp_path / "sidecar").iterdir()) == [BRIDGE, MANIFEST]


def test_everyone_may_read_a_sidecar(tmp_path: Path) -> None:
    sidecar(tiny.target()).save(tmp_path / "sidecar")
    paths = [tmp_path / "sidecar", *(tmp_path / "sidecar").iterdir()]
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in paths)


CAST: dict[str, Callable[[Target], None]] = {
    "bf16": lambda target: cast(target, mx.bfloat16),
    "fp16": lambda target: cast(target, mx.float16),
    "8 bits": lambda target: nn.quantize(target.model, 64, 8, class_predicate=fits(64)),
    "4 bits": lambda target: nn.quantize(target.model, 32, 4),
    "mxfp4": lambda target: nn.quantize(target.model, 32, 4, mode="mxfp4"),
    "bf16, then 4 bits": lambda target: (cast(target, mx.bfloat16), nn.quantize(target.model, 32, 4)),
}


def fits(group: int) -> Callable[[str, Any], bool]:
    return lambda path, module: hasattr(module, "to_quantized") and module.weight.shape[-1] % group == 0


def cast(target: Target, dtype: mx.Dtype) -> None:
    target.model.update(tree_map(lambda w: w.astype(dtype), target.model.parameters()))


@pytest.mark.parametrize("kind", CAST)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_fingerprint_survives_casting_and_quantising(family: str, kind: str) -> None:
    base, changed = base_of(tiny.target(family)), tiny.target(family)
    CAST[kind](changed)
    found = base_of(changed)
    assert found.fingerprint != base.fingerprint
    assert 0.95 < base.likeness(found) <= 1.0 + 1e-6
    base.check(found, "sidecar")


def test_another_models_fingerprint_is_nowhere_near() -> None:
    base = base_of(tiny.target(seed=0))
    likenesses = [base.likeness(base_of(tiny.target(seed=seed))) for seed in range(1, 9)]
    assert max(map(abs, likenesses)) < SAME_BASE / 2


def test_another_model_of_equal_size_is_refused_with_what_was_found_and_what_to_do() -> None:
    made = sidecar(tiny.target(seed=0))
    with pytest.raises(SkipSpecError) as error:
        made.base.check(base_of(tiny.target(seed=1)), "my-sidecar")
    message = str(error.value)
    assert message.startswith("The sidecar my-sidecar belongs to tiny (6 layers, hidden 64, vocabulary 96)")
    assert "other weights (likeness" in message
    assert "mlx-skipspec fit --model MODEL --out DIR" in message


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 7}, {"hidden_size": 128}, {"vocab_size": 97}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_model_of_another_size_is_refused_by_its_sizes(changes: dict[str, int]) -> None:
    sizes = {"num_hidden_layers": 6, "hidden_size": 64, "vocab_size": 96} | changes
    found = "has {num_hidden_layers} layers, hidden {hidden_size}, vocabulary {vocab_size};".format(**sizes)
    with pytest.raises(SkipSpecError, match=found):
        sidecar(tiny.target()).base.check(base_of(tiny.target(**changes)), "sidecar")


@pytest.mark.parametrize("tied", [True, False])
def test_a_reader_without_mlx_finds_the_same_fingerprint_in_the_checkpoint(tmp_path: Path, tied: bool) -> None:
    folder = checkpoint.write(tmp_path / "model", tie_word_embeddings=tied)
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = Base.of(
        config["num_hidden_layers"],
        config["hidden_size"],
        config["vocab_size"],
        lambda name, rows: weights[name][rows],
        "tiny",
    )
    assert found == base_of(load_target(folder), "tiny")


def test_the_fingerprint_reads_few_numbers_of_every_matrix() -> None:
    asked: list[tuple[str, int]] = []

    def rows_of(name: str, rows: list[int]) -> np.ndarray:
        asked.append((name, len(rows)))
        return np.ones((len(rows), 64))

    Base.of(30, 64, 1000, rows_of)
    layers = [f"model.layers.{i}.mlp.down_proj.weight" for i in (0, 15, 29)]
    assert asked == [(name, 64) for name in ["model.embed_tokens.weight", *layers]]


@contextmanager
def a_file_may_have(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path) -> None:
    made = sidecar(tiny.target())
    with pytest.raises(SkipSpecError, match="nothing was left behind"), a_file_may_have(4096):
        made.save(tmp_path / "sidecar")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def interrupted(*_: Any) -> None:
        seen.append([path.name for path in tmp_path.iterdir()])
        raise KeyboardInterrupt

    monkeypatch.setattr(artifacts, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sidecar(tiny.target()).save(tmp_path / "sidecar")
    assert list(tmp_path.iterdir()) == []
    assert len(seen[0]) == 1  # it was being written, under another name
    assert seen[0] != ["sidecar"]


def test_a_folder_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    made = sidecar(tiny.target())
    made.save(tmp_path / "sidecar")
    with pytest.raises(SkipSpecError, match="exists; need a new folder"):
        replace(made, head=1).save(tmp_path / "sidecar")
    assert Sidecar.load(tmp_path / "sidecar") == made
    assert [path.name for path in tmp_path.iterdir()] == ["sidecar"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SkipSpecError, match="Cannot write"):
        sidecar(tiny.target()).save(tmp_path / "file" / "sidecar")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "No skipspec.json"),
    "no bridge": (lambda folder: (folder / BRIDGE).unlink(), "cannot be read"),
    "a bridge cut short": (
        lambda folder: (folder / BRIDGE).write_bytes((folder / BRIDGE).read_bytes()[:99]),
        "cannot be read",
    ),
    "a bridge in bf16": (
        lambda folder: mx.save_safetensors(str(folder / BRIDGE), {"proj.weight": mx.zeros((2, 2), mx.bfloat16)}),
        "cannot be read",
    ),
    "no JSON": (lambda folder: (folder / MANIFEST).write_text("{"), "cannot be read"),
    "a list": (lambda folder: (folder / MANIFEST).write_text("[]"), "cannot be read"),
    "a word": (lambda folder: (folder / MANIFEST).write_text('"schema"'), "cannot be read"),
    "no text": (lambda folder: (folder / MANIFEST).write_bytes(b"\xff"), "cannot be read"),
    "another schema": (lambda folder: change(folder, schema=2), "another schema; need 1"),
    "another kind": (lambda folder: change(folder, kind="eagle"), "holds a 'eagle'; need 'hvc'"),
    "a key too many": (lambda folder: change(folder, colour="red"), "cannot be read"),
    "no base": (lambda folder: change(folder, base=None), "cannot be read"),
}


def change(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    (folder / MANIFEST).write_text(json.dumps(manifest | changes), encoding="utf-8")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_sidecar_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    sidecar(tiny.target()).save(tmp_path / "sidecar")
    spoil, message = DAMAGES[damage]
    spoil(tmp_path / "sidecar")
    with pytest.raises(SkipSpecError, match=message):
        Sidecar.load(tmp_path / "sidecar")


def at_home(target: Target, above: Path) -> Target:
    """As if loaded from the folder `model`."""
    return Target(target.model, above / "model")


@pytest.mark.parametrize("place", ["model/skipspec", "model-skipspec"])
def test_a_sidecar_inside_or_beside_the_models_folder_is_found(tmp_path: Path, place: str) -> None:
    target = at_home(tiny.target(), tmp_path)
    assert find_sidecar(target) is None
    made = sidecar(target)
    made.save(tmp_path / place)
    assert find_sidecar(target) == made
    assert choose_drafter(target, "auto").mode == "lookup+skip(2,2)+hvc"
    assert choose_drafter(target, "skip").mode == "skip(2,2)+hvc"


@pytest.mark.parametrize("choice", ["auto", "skip"])
def test_another_models_sidecar_in_the_folder_is_an_error_and_not_another_drafter(tmp_path: Path, choice: str) -> None:
    sidecar(tiny.target(seed=0)).save(tmp_path / "model" / "skipspec")
    with pytest.raises(SkipSpecError, match="other weights"):
        choose_drafter(at_home(tiny.target(seed=1), tmp_path), choice)
    with pytest.raises(SkipSpecError, match="other weights"):
        choose_drafter(tiny.target(seed=1), choice, sidecar=tmp_path / "model" / "skipspec")


def test_a_bundled_sidecar_serves_its_own_model_and_is_silent_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_skipspec.drafting.BUNDLED", tmp_path)
    for seed in (0, 1):
        sidecar(tiny.target(seed=seed), made_by={"seed": seed}).save(tmp_path / str(seed))
    for seed in (0, 1):
        found = find_sidecar(tiny.target(seed=seed))
        assert found is not None
        assert found.made_by == {"seed": seed}
    assert choose_drafter(tiny.target(seed=2)).mode == "lookup"


def test_a_plan_of_ones_own_goes_before_a_sidecar_that_was_found_but_not_one_that_was_given(tmp_path: Path) -> None:
    target = at_home(tiny.target(), tmp_path)
    sidecar(target).save(tmp_path / "model" / "skipspec")
    assert choose_drafter(target, "skip", plan="1,1").mode == "skip(1,1)"
    assert choose_drafter(target, "skip", plan="2,2").mode == "skip(2,2)+hvc"
    with pytest.raises(SkipSpecError, match="bridges plan 2,2, not 1,1"):
        choose_drafter(target, "skip", plan="1,1", sidecar=tmp_path / "model" / "skipspec")


@pytest.mark.parametrize(
    ("choice", "options", "message"),
    [
        ("skip", {}, "found no sidecar for this model; need --sidecar DIR or --plan"),
        ("best", {}, "drafter='best'; need one of auto, none, skip, lookup"),
        ("none", {"plan": "2,2"}, "uses no --plan"),
        ("lookup", {"sidecar": Path("x")}, "uses no --plan and no --sidecar"),
        ("skip", {"sidecar": Path("nowhere")}, "No skipspec.json in nowhere"),
        ("auto", {"plan": "3,3"}, "leaves no layer to skip"),
    ],
)
def test_a_drafter_that_cannot_be_had_is_never_replaced_in_silence(
    choice: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mlx_skipspec.drafting.BUNDLED", tmp_path)
    with pytest.raises(SkipSpecError, match=message):
        choose_drafter(tiny.target(), choice, **options)


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
        drafter.observe(target(mx.array(prompt[:-1]), kv)[1])
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
