"""What passes and draft steps cost here, kept in a file: measured once per machine, model and mlx."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_skipspec.calibration import measure
from mlx_skipspec.costs import Costs
from mlx_skipspec.drafters.protocol import Drafter
from mlx_skipspec.fingerprint import probe
from mlx_skipspec.folders import cache_folder, whole_file
from mlx_skipspec.target import Target

log = logging.getLogger("mlx_skipspec")

SCHEMA = 2  # raise it when what is measured changes its meaning
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def costs_for(target: Target, drafters: Sequence[Drafter], recalibrate: bool = False) -> Costs:
    """Costs of this target and these drafters on this machine: from the cache, else measured and put there.

    A cache that is damaged or cannot be written is no error: the costs are measured again, and a note says so.
    """
    about = _about(target, drafters)
    file = cache_folder() / "costs" / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.json"
    if not recalibrate:
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            if found["about"] != about:
                raise ValueError
            return Costs.from_json(found["costs"])
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the measured costs in %s cannot be read (%s); measuring again", file, type(error).__name__)
    costs = measure(target, drafters)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as temporary:
            temporary.write_text(json.dumps({"about": about, "costs": costs.to_json()}, indent=1), encoding="utf-8")
    except OSError as error:
        log.warning("the measured costs cannot be kept in %s (%s)", file.parent, error.strerror)
    return costs


def _about(target: Target, drafters: Sequence[Drafter]) -> dict[str, Any]:
    """Everything the costs depend on; the file's name is its hash."""
    shapes = sorted((name, list(w.shape), str(w.dtype)) for name, w in tree_flatten(target.model.parameters()))

    def rows_of(rows: list[int]) -> np.ndarray:
        return np.array(target.head_rows(mx.array(rows)).astype(mx.float32))

    return {
        "schema": SCHEMA,
        "machine": machine(),
        "mlx": mx.__version__,  # type: ignore[attr-defined]
        "model": [round(value, 3) for value in probe(rows_of, target.vocab_size)],
        "weights": hashlib.sha256(json.dumps(shapes).encode()).hexdigest(),  # dtype and quantisation
        "drafters": [getattr(drafter, "about", drafter.name) for drafter in drafters],
    }


def machine() -> dict[str, Any]:
    """The processor, and what decides how fast its matrix products are."""
    info = mx.device_info() if hasattr(mx, "device_info") else {}
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return {
        "host": platform.node(),
        "cpu": name,
        "cores": os.cpu_count(),
        "device": str(mx.default_device()),
        "gpu": [str(info.get("architecture", "")), str(info.get("device_name", ""))],
        "preload": os.environ.get("LD_PRELOAD", ""),
        "threads": {name: os.environ[name] for name in THREADS if name in os.environ},
    }
