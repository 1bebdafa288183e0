"""Our blocks compute what transformers computes, for every variant of a config that we accept."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bare_checkpoint import LINEAR, LLAMA3, MIXED, SIZES, VOCAB, YARN, gain  # noqa: E402

from mlx_skipspec.loading import load_target  # noqa: E402
from mlx_skipspec.models import FAMILIES, get_model_classes  # noqa: E402
from mlx_skipspec.target import Target  # noqa: E402

LENGTH, WINDOW = 48, 8
SLIDING = ["sliding_attention"] * 4
QWEN_SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW}


@dataclass(frozen=True, eq=False)
class Case:
    """A config as a person would write it for transformers; `ours` is what our side is told instead."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)

    @property
    def written(self) -> dict[str, Any]:
        return {"model_type": self.name.split()[0], **SIZES, **copy.deepcopy(self.config)}


# transformers reads a Mistral with `layer_types` as a Ministral, and its Llama has no windows: another family with the
# same weights says there what our side must give.
AS_MISTRAL, AS_LLAMA = {"model_type": "mistral"}, {"model_type": "llama"}
ROPES = {
    "a theta": {"rope_theta": 500.0},
    "linear RoPE": {"rope_scaling": LINEAR, "rope_theta": 900.0},
    "llama3 RoPE": {"rope_scaling": LLAMA3, "rope_theta": 500.0},
    "llama3 RoPE without an original length": {
        "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"},
        "max_position_embeddings": 96,
    },
    "yarn RoPE": {"rope_scaling": YARN},
    "yarn RoPE and attention_factor": {"rope_scaling": {**YARN, "attention_factor": 0.7}},
    "yarn RoPE and mscales": {"rope_scaling": {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5}},
    "yarn RoPE and one mscale": {"rope_scaling": {**YARN, "factor": 5.0, "mscale": 3.0}},
    "yarn RoPE, mscales and attention_factor": {
        "rope_scaling": {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5, "attention_factor": 1.4}
    },
    "yarn RoPE and betas": {"rope_scaling": {**YARN, "beta_fast": 6, "beta_slow": 4}},
    "yarn RoPE without an original length": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "yarn RoPE and an original length beside it": {"rope_scaling": YARN, "original_max_position_embeddings": 32},
    "a theta inside rope_scaling": {"rope_scaling": {**LINEAR, "rope_theta": 77.0}, "rope_theta": 900.0},
    "rope_scaling and rope_parameters at odds": {
        "rope_scaling": {**LINEAR, "factor": 3.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        "rope_theta": 20.0,
    },
}
CASES = [
    Case("llama"),
    Case("llama tied", {"tie_word_embeddings": True}),
    Case("llama with as many KV heads as heads", {"num_key_value_heads": None}),
    Case("llama with large heads", {"head_dim": 32}),
    Case("llama with attention_bias", {"attention_bias": True}),
    Case("llama with mlp_bias", {"mlp_bias": True}),
    Case("llama with a window no layer names", {"sliding_window": WINDOW}),
    Case("mistral", {"sliding_window": None}),
    Case("mistral with a window", {"sliding_window": WINDOW}),
    Case("mistral with large heads and a window", {"sliding_window": WINDOW, "head_dim": 32}),
    Case(
        "ministral as mistral with mixed layers",
        {"head_dim": 16, "sliding_window": 8, "layer_types": MIXED},
        AS_MISTRAL,
    ),
    Case("ministral as llama with mixed layers", {"head_dim": 16, "sliding_window": 9, "layer_types": MIXED}, AS_LLAMA),
    Case("ministral as llama, all sliding", {"head_dim": 16, "sliding_window": 11, "layer_types": SLIDING}, AS_LLAMA),
    Case("qwen2"),
    Case("qwen2 tied", {"tie_word_embeddings": True}),
    Case("qwen2 with a window it does not use", {"sliding_window": WINDOW, "max_window_layers": 0}),
    Case("qwen2 sliding from a layer on", {**QWEN_SLIDING, "max_window_layers": 2}),
    Case("qwen2 all sliding", {**QWEN_SLIDING, "max_window_layers": 0}),
    Case("qwen2 with mixed layers", {**QWEN_SLIDING, "layer_types": MIXED}),
    Case("qwen3", {"head_dim": 32}),
    Case("qwen3 tied", {"head_dim": 16, "tie_word_embeddings": True}),
    Case("qwen3 with attention_bias", {"head_dim": 16, "attention_bias": True}),
    Case("qwen3 sliding from a layer on", {"head_dim": 16, **QWEN_SLIDING, "max_window_layers": 2}),
    Case("qwen3 all sliding", {"head_dim": 16, **QWEN_SLIDING, "max_window_layers": 0}),
    Case("qwen3 with mixed layers", {"head_dim": 16, **QWEN_SLIDING, "layer_types": MIXED}),
    *(Case(f"llama with {rope}", config) for rope, config in ROPES.items()),
    *(
        Case(f"{family} with {rope}", {**config, **extra})
        for family, extra in {"mistral": {"sliding_window": 12}, "qwen2": {}, "qwen3": {"head_dim": 32}}.items()
        for rope, config in ROPES.items()
        if rope in ("a theta", "linear RoPE", "llama3 RoPE", "yarn RoPE and attention_factor")
    ),
]
SAME = {"llama with a window no layer names": ["llama"], "qwen2 with a window it does not use": ["qwen2"]}
IDS = torch.randint(0, VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Writes a case's random checkpoint, once; its folder, and transformers' logits (LENGTH, VOCAB) of IDS."""

    @functools.cache
    @torch.no_grad()
    def write(case: Case) -> tuple[Path, np.ndarray]:
        config = transformers.AutoConfig.for_model(**case.written)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        torch.manual_seed(0)
        for name, weight in model.named_parameters():
            mean, deviation = gain(name, weight.shape[-1])
            weight.copy_(mean + deviation * torch.randn(weight.shape))
        folder = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder)
        return folder, model(IDS, use_cache=False).logits[0].numpy()

    return write


def load(folder: Path, config: dict[str, Any]) -> Target:
    (folder / "config.json").write_text(json.dumps(config))
    return load_target(folder, "float32")


def logits(target: Target, *widths: int) -> np.ndarray:  # -> (LENGTH, VOCAB)
    kv, ends = target.make_kv(), list(itertools.accumulate(widths))
    assert ends[-1] == LENGTH
    blocks = (IDS[0, end - width : end].numpy() for end, width in zip(ends, widths, strict=True))
    return np.array(mx.concatenate([target(mx.array(block), kv)[0][0] for block in blocks]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_are_those_of_transformers_however_the_prompt_is_cut(case, checkpoint):
    folder, theirs = checkpoint(case)
    saved = json.loads((folder / "config.json").read_text())
    assert "rope_scaling" not in saved
    assert "rope_parameters" in saved
    target = load(folder, saved | case.ours)
    close(logits(target, LENGTH), theirs)
    target = load(folder, case.written | case.ours)
    close(logits(target, LENGTH), theirs)
    close(logits(target, 20, 5, 5, *[1] * 18), theirs)


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    assert np.abs(ours - theirs).max() < 1e-4


def test_no_two_variants_of_a_family_give_the_same_logits_unless_they_should(checkpoint):
    seen: dict[str, np.ndarray] = {}
    for case in CASES:
        family, theirs = case.name.split()[0], checkpoint(case)[1]
        assert 1 < np.abs(theirs).max() < 100
        alike = [name for name in seen if name.split()[0] == family and np.abs(theirs - seen[name]).max() < 1e-2]
        assert alike == SAME.get(case.name, [])
        seen[case.name] = theirs


LARGE = {
    "hidden_size": 4096,
    "intermediate_size": 64,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": VOCAB,
}
SPARSE: dict[str, dict[str, Any]] = {
    "nothing more": {},
    "null RoPE": {"rope_scaling": None, "rope_parameters": None},
    "null KV heads": {"num_key_value_heads": None},
    "null head size": {"head_dim": None},
    "a window": {"sliding_window": 512},
    "null window": {"sliding_window": None},
    "window in use": {"use_sliding_window": True},
    "window in use, null": {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    "window in use from a layer on": {"use_sliding_window": True, "max_window_layers": 3},
    "RoPE type only": {"rope_parameters": {"rope_type": "default"}},
    "yarn in a known context": {"rope_scaling": {"type": "yarn", "factor": 2.0}, "max_position_embeddings": 4096},
}


# Nulls that transformers' configs do not accept.
NO_NULLS = {"mistral": ["null KV heads"], "qwen2": ["null head size"], "qwen3": ["null head size"]}


@pytest.mark.parametrize(
    ("family", "name"),
    [(family, name) for family in FAMILIES for name in SPARSE if name not in NO_NULLS.get(family, ())],
)
def test_absent_and_null_keys_mean_what_transformers_takes_them_for(family, name):
    written = {"model_type": family, **LARGE, **SPARSE[name]}
    theirs = transformers.AutoConfig.for_model(**copy.deepcopy(written))
    ours = get_model_classes(written)[1].from_dict(written)
    same = ("num_key_value_heads", "rms_norm_eps", "tie_word_embeddings")
    assert [getattr(ours, key) for key in same] == [getattr(theirs, key) for key in same]
    assert ours.head_dim == getattr(theirs, "head_dim", LARGE["hidden_size"] // LARGE["num_attention_heads"])
    assert ours.qkv_bias == (family == "qwen2")
    assert {ours.o_bias, ours.mlp_bias} == {False}
    rope = theirs.rope_parameters
    assert ours.rope_theta == rope["rope_theta"]
    if rope["rope_type"] == "default":
        assert ours.rope_scaling is None
    else:
        assert {"rope_theta": ours.rope_theta, **ours.rope_scaling, "type": "yarn"} == {**rope, "type": "yarn"}
    assert ours.windows == windows(theirs)


def windows(config: Any) -> tuple[int | None, ...]:
    if config.model_type == "llama":
        return (None,) * config.num_hidden_layers
    if config.model_type == "mistral":
        return (config.sliding_window,) * config.num_hidden_layers
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types)


def test_without_the_key_a_head_of_its_own_is_not_tied_and_a_missing_one_is(checkpoint):
    cases = {case.name: case for case in CASES}
    for name, tied in {"llama": False, "llama tied": True, "qwen3": False, "qwen3 tied": True}.items():
        folder, theirs = checkpoint(cases[name])
        config = {key: value for key, value in cases[name].written.items() if key != "tie_word_embeddings"}
        target = load(folder, config)
        assert target.args.tie_word_embeddings == tied
        close(logits(target, LENGTH), theirs)
