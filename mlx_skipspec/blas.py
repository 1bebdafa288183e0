"""On Linux mlx's wheel carries reference BLAS; a faster one takes over when it is loaded first."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

PLACES = (
    "/usr/lib/x86_64-linux-gnu/openblas-pthread",  # Debian, Ubuntu
    "/usr/lib/aarch64-linux-gnu/openblas-pthread",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",  # Fedora
    "/usr/lib",  # Arch
)
NAMES = ("libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so")
REFERENCE = "reference"
NO_SPEED_UP = (
    "mlx's reference BLAS computes one row after another: verifying n tokens costs n plain steps, so no speed-up is "
    "possible. Install OpenBLAS (Debian: libopenblas0-pthread) and it will be used, or preload another BLAS."
)


@dataclass(frozen=True)
class Blas:
    """What multiplies matrices on the CPU; `threads` is None where it is not known."""

    name: str
    threads: int | None

    @property
    def is_reference(self) -> bool:
        return self.name == REFERENCE

    def __str__(self) -> str:
        threads = {None: "", 1: ", 1 thread"}.get(self.threads, f", {self.threads} threads")
        return f"{self.name} BLAS{threads}" if self.is_reference else f"{self.name}{threads}"


def with_openblas() -> Blas:
    """Start this program again with OpenBLAS preloaded, one thread unless OPENBLAS_NUM_THREADS says otherwise.

    Returns at once where that is of no use: another system, a BLAS that is preloaded already, none to be found, or mlx
    loaded, by a program that is not ours to start again.
    """
    if "mlx.core" not in sys.modules and (better := better_environment(os.environ, sys.platform)) is not None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], better)
    return blas_in_use()


def better_environment(environment: Mapping[str, str], platform: str) -> dict[str, str] | None:
    """What to start again with; None where that would change nothing."""
    loaded = environment.get("LD_PRELOAD", "")
    preload = None if any(name in loaded for name in ("blas", "blis", "mkl")) else openblas()
    if platform != "linux" or (preload is None and "openblas" not in loaded):
        return None
    better = {"OPENBLAS_NUM_THREADS": "1", **environment}
    if preload is not None:
        better["LD_PRELOAD"] = " ".join(filter(None, [preload, loaded]))
    return better if better != environment else None


def openblas() -> str | None:
    """Path of an OpenBLAS on this machine."""
    found = find_library("openblas")
    names = [*([found] if found else []), *NAMES]
    return next((str(file) for place in PLACES for name in names if (file := Path(place) / name).exists()), None)


def blas_in_use() -> Blas:
    """The BLAS this process resolves to, asked of the loader and of the library itself."""
    if sys.platform != "linux":
        return Blas("Accelerate", None)
    process = ctypes.CDLL(None)
    try:
        file = _file_of(process, process.cblas_sgemm)
    except AttributeError:  # nobody gives it to the whole process, so mlx takes what came with it
        return Blas(REFERENCE, 1)
    for threads in ("openblas_get_num_threads", "bli_thread_get_num_threads"):
        if hasattr(process, threads):
            return Blas(file.name, int(getattr(process, threads)()))
    return Blas(file.name, None)


class _Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _file_of(process: ctypes.CDLL, function: object) -> Path:
    symbol = _Symbol()
    process.dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(symbol))  # type: ignore[arg-type]
    return Path(os.fsdecode(symbol.file or b"unknown"))
