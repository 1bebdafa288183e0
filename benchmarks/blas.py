"""On Linux mlx's wheel carries reference BLAS; a faster one takes over when it is loaded first."""

from __future__ import annotations

import os
import sys
from ctypes.util import find_library
from pathlib import Path

PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def with_openblas() -> dict[str, object]:
    """Start the running script again with OpenBLAS preloaded, one thread unless OPENBLAS_NUM_THREADS says otherwise.

    Returns what it runs on: {"blas", "threads"}. Call it before mlx is imported.
    """
    if sys.platform != "linux":
        return {"blas": "Accelerate", "threads": None}
    loaded = os.environ.get("LD_PRELOAD", "")
    if "openblas" in loaded:
        return {"blas": Path(loaded).name, "threads": int(os.environ.get("OPENBLAS_NUM_THREADS", os.cpu_count() or 1))}
    library = openblas()
    if library is None:
        print("no OpenBLAS found (Debian: libopenblas0-pthread); running on mlx's reference BLAS", file=sys.stderr)
        return {"blas": "reference", "threads": 1}
    environment = {**os.environ, "LD_PRELOAD": library}
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def openblas() -> str | None:
    name = find_library("openblas")
    for place in PLACES if name else ():
        for file in (Path(place) / str(name), Path(place) / "openblas-pthread" / str(name)):
            if file.exists():
                return str(file)
    return None
