"""Converting: what comes out is the same model, whole, for mlx-lm and for us; or nothing comes out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import tiny
from mlx_lm.utils import load_tokenizer
from random_sidecar import bridge_for

from mlx_skipspec import SkipSpecError, load
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.convert import hf
from mlx_skipspec.convert.hf import convert
from mlx_skipspec.drafting import choose_drafter, find_sidecar

TOKENS = mx.array([5, 40, 300, 7, 7, 120, 2, 88])
NESTED = {
    "llama": {"rope_type": "default", "rope_theta": 500000.0},
    "mistral": {"rope_type": "linear", "factor": 4.0, "rope_theta": 30000.0},
    "qwen3": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.3,
        "rope_theta": 1e6,
    },
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each family, made once."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for family in tiny.FAMILIES:
        checkpoint.write(folder / family, family)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "out"
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def their_logits(folder: Path) -> mx.array:
    return mlx_lm.load(str(folder))[0](TOKENS[None])[0]


def our_logits(folder: Path) -> mx.array:
    target = load(folder, dtype="checkpoint")[0]
    return target(TOKENS, target.make_kv())[0][0]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_copy_has_the_logits_of_the_original_in_mlx_lm_and_here(shelf: Path, out: Path, family: str) -> None:
    convert(str(shelf / family), out)
    assert mx.array_equal(their_logits(out), our_logits(out))
    assert mx.array_equal(our_logits(out), our_logits(shelf / family))


QUANTISED: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {  # options, in config.json, largest mean error
    "4 bits": ({"q_group_size": 32}, {"group_size": 32, "bits": 4, "mode": "affine"}, 1.0),
    "8 bits": ({"q_bits": 8, "q_group_size": 32}, {"group_size": 32, "bits": 8, "mode": "affine"}, 0.1),
    "mxfp4": ({"q_mode": "mxfp4"}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}, 1.2),
}


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_quantised_it_is_the_same_model_in_mlx_lm_and_here(shelf: Path, out: Path, family: str, kind: str) -> None:
    options, settings, error = QUANTISED[kind]
    convert(str(shelf / family), out, quantise=True, **options)
    ours, original = our_logits(out), our_logits(shelf / family)
    assert mx.array_equal(their_logits(out), ours)
    assert 0 < mx.abs(ours - original).mean().item() < error < mx.abs(original).mean().item()
    assert config_of(out)["quantization"] == config_of(out)["quantization_config"] == settings
    assert (out / "model.safetensors").stat().st_size < 0.5 * (shelf / family / "model.safetensors").stat().st_size


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_weights_are_of_the_dtype_asked_for_and_the_config_says_so(shelf: Path, out: Path, dtype: str) -> None:
    convert(str(shelf / "llama"), out, dtype=dtype)
    weights, original = mx.load(str(out / "model.safetensors")), mx.load(str(shelf / "llama" / "model.safetensors"))
    assert {w.dtype for w in weights.values()} == {getattr(mx, dtype)}
    assert weights.keys() == original.keys()
    assert all(mx.array_equal(w, original[name].astype(w.dtype)) for name, w in weights.items())
    assert {config_of(out).get(key) for key in ("dtype", "torch_dtype")} - {None} == {dtype}


def test_without_a_dtype_the_weights_keep_theirs(shelf: Path, out: Path, tmp_path: Path) -> None:
    convert(str(shelf / "llama"), tmp_path / "half", dtype="float16")
    convert(str(tmp_path / "half"), out)
    assert {w.dtype for w in mx.load(str(out / "model.safetensors")).values()} == {mx.float16}


def test_a_quantised_checkpoint_can_be_dequantised_and_quantised_again(shelf: Path, out: Path, tmp_path: Path) -> None:
    convert(str(shelf / "llama"), tmp_path / "four", quantise=True, q_bits=4, q_group_size=32)
    with pytest.raises(SkipSpecError, match="quantised already; give --dtype"):
        convert(str(tmp_path / "four"), out, quantise=True)
    convert(str(tmp_path / "four"), tmp_path / "full", dtype="float32")
    assert "quantization" not in config_of(tmp_path / "full")
    assert mx.allclose(our_logits(tmp_path / "full"), our_logits(tmp_path / "four"), atol=1e-3)
    convert(str(tmp_path / "four"), out, quantise=True, q_bits=8, q_group_size=32, dtype="float32")
    assert config_of(out)["quantization"]["bits"] == 8
    assert mx.array_equal(their_logits(out), our_logits(out))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_nested_rope_parameters_come_out_flat_as_mlx_lm_reads_them(tmp_path: Path, out: Path, family: str) -> None:
    source = checkpoint.write(
        tmp_path / "model", family, extra={"rope_parameters": NESTED[family]}, without=("rope_theta",)
    )
    convert(str(source), out)
    config, nested = config_of(out), dict(NESTED[family])
    assert "rope_parameters" not in config
    assert config["rope_theta"] == nested.pop("rope_theta")
    if nested["rope_type"] == "default":
        assert config["rope_scaling"] is None
    else:  # YaRN's attention factor stays, for transformers, and comes as an mscale too, for mlx-lm
        assert nested.items() <= config["rope_scaling"].items()
    assert mx.array_equal(their_logits(out), our_logits(source))
    assert mx.array_equal(our_logits(out), our_logits(source))
    assert not mx.allclose(their_logits(source), their_logits(out), atol=1e-3)


def test_everything_a_model_folder_needs_is_there(shelf: Path, out: Path) -> None:
    convert(str(shelf / "llama"), out)
    original, copy = load_tokenizer(shelf / "llama"), load_tokenizer(out)
    text, messages = "grün then € <s>", [{"role": "user", "content": "hello"}]
    assert copy.encode(text) == original.encode(text)
    assert copy.apply_chat_template(messages, add_generation_prompt=True) == original.apply_chat_template(
        messages, add_generation_prompt=True
    )
    assert copy.eos_token_ids == original.eos_token_ids
    assert {path.name for path in out.iterdir()} == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    for name in ("generation_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (shelf / "llama" / name).read_bytes()
    assert out.stat().st_mode & 0o555 == 0o555


def test_a_template_inside_the_tokenizers_config_is_kept(shelf: Path, out: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    shutil.copytree(shelf / "llama", source)
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = (source / "chat_template.jinja").read_text(encoding="utf-8")
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "chat_template.jinja").unlink()
    convert(str(source), out)
    assert (
        load(out)[1].apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "<|user|>hello</s>"
    )


def test_all_the_ids_that_end_a_text_are_kept(out: Path, tmp_path: Path) -> None:
    source = checkpoint.write(tmp_path / "model", eos=[1, 3])
    convert(str(source), out)
    assert load(out)[1].eos_token_ids == {1, 3}


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, "float32"), ({"dtype": "float16"}, "float16"), ({"quantise": True, "q_mode": "mxfp4"}, "quantised")],
)
def test_the_card_says_what_it_is_and_how_to_run_it(shelf: Path, out: Path, options: dict[str, Any], kind: str) -> None:
    convert(str(shelf / "llama"), out, hvc=bridge_for(shelf / "llama", out.parent / "sidecar"), **options)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: mlx\n")
    assert "base_model: llama\n" in card
    bridge = "a bridge over the layers between the first 1 and the last 2"
    assert f"Converted from llama to MLX ({kind}), with {bridge}." in card
    assert "mlx-skipspec generate --model" in card
    assert str(shelf) not in card


@pytest.mark.parametrize("options", [{}, {"quantise": True, "q_group_size": 32}, {"dtype": "float16"}], ids=str)
def test_the_sidecar_inside_is_found_and_used(shelf: Path, out: Path, options: dict[str, Any]) -> None:
    bridge = bridge_for(shelf / "llama", out.parent / "sidecar")
    convert(str(shelf / "llama"), out, hvc=bridge, **options)
    target, _ = load(out)
    found = find_sidecar(target)
    assert found == Sidecar.load(bridge)
    assert found is not None
    assert all(np.array_equal(found.tensors[name], value) for name, value in Sidecar.load(bridge).tensors.items())
    assert choose_drafter(target, "auto").mode == "lookup+skip(1,2)+hvc"
    assert mx.array_equal(their_logits(out), our_logits(out))  # mlx-lm is not disturbed by it


def test_another_models_sidecar_is_refused_before_anything_is_written(shelf: Path, out: Path, tmp_path: Path) -> None:
    other = checkpoint.write(tmp_path / "other", seed=9)
    bridge = bridge_for(other, tmp_path / "sidecar")
    with pytest.raises(SkipSpecError, match="other weights"):
        convert(str(shelf / "llama"), out, hvc=bridge)
    assert not out.exists()


@pytest.mark.parametrize("step", ["save_model", "save_config", "card"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError(28, "No space left on device"), RuntimeError("write")], ids=repr
)
def test_nothing_is_left_when_it_stops_in_the_middle(
    shelf: Path, out: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Any
) -> None:
    reached = []

    def stop(*_: Any, **__: Any) -> None:
        reached.append([path.name for path in out.parent.iterdir()])
        raise error

    monkeypatch.setattr(hf, step, stop)
    with pytest.raises((SkipSpecError, KeyboardInterrupt, RuntimeError)) as raised:
        convert(str(shelf / "llama"), out)
    assert len(reached[0]) == 1  # it was being written, under another name
    assert list(out.parent.iterdir()) == []
    if isinstance(error, OSError):
        assert raised.type is SkipSpecError
        assert "No space left on device; nothing was left behind" in str(raised.value)
    if step == "save_model" and isinstance(error, RuntimeError):  # how mlx says that the disk is full
        assert raised.type is SkipSpecError


def test_nothing_is_left_when_the_sidecar_cannot_be_written(
    shelf: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = bridge_for(shelf / "llama", tmp_path / "sidecar")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mlx_skipspec.artifacts.save_file", full)
    with pytest.raises(SkipSpecError, match="No space left"):
        convert(str(shelf / "llama"), out / "deep" / "er", hvc=bridge)
    assert [path.name for path in tmp_path.iterdir()] == ["sidecar"]


@pytest.mark.parametrize("tied", [True, False])
def test_without_a_word_on_ties_the_tensors_decide(tmp_path: Path, out: Path, tied: bool) -> None:
    source = checkpoint.write(tmp_path / "model", tie_word_embeddings=tied, without=("tie_word_embeddings",))
    assert "tie_word_embeddings" not in config_of(source)
    convert(str(source), out)
    assert config_of(out)["tie_word_embeddings"] is tied
    assert ("lm_head.weight" in mx.load(str(out / "model.safetensors"))) is not tied
    assert mx.array_equal(their_logits(out), our_logits(source))


def test_a_folder_that_exists_is_left_alone(shelf: Path, out: Path) -> None:
    out.mkdir()
    with pytest.raises(SkipSpecError, match="exists; need a new folder"):
        convert(str(shelf / "llama"), out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float8"}, "dtype='float8'"),
        ({"q_bits": 4}, "only count with -q"),
        ({"quantise": True, "q_bits": 7}, "7 bits"),
        ({"quantise": True, "q_mode": "mxfp4", "q_bits": 8}, "8 bits"),
        ({"hvc": Path("nowhere")}, "No skipspec.json"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(
    shelf: Path, out: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SkipSpecError, match=message):
        convert(str(shelf / "llama"), out, **options)
    assert list(out.parent.iterdir()) == []


def test_a_model_of_another_family_is_refused_by_name(shelf: Path, out: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    shutil.copytree(shelf / "llama", source)
    (source / "config.json").write_text(json.dumps(config_of(source) | {"model_type": "gemma3"}))
    with pytest.raises(SkipSpecError, match="'gemma3' is not one we compute exactly"):
        convert(str(source), out)
