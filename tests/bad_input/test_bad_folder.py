"""A model that is not there, a folder that lacks something, weights that are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import mlx.core as mx
import pytest
from spoil import HIDDEN, Refuse, rewrite


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


def test_a_hub_that_cannot_be_reached(refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("some/model", "some/-model", "so me/model"):
        assert f"{name} is no folder here, and the hub gave " in refuse("generate", "-p", "hi", "--model", name)
