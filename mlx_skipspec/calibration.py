"""What a pass of the target and a draft step cost on this machine: measured once, kept in a file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median_low
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_skipspec.costs import Costs
from mlx_skipspec.drafters.protocol import Drafter
from mlx_skipspec.fingerprint import probe
from mlx_skipspec.target import Target

__all__ = ["Costs", "costs_for", "measure"]

log = logging.getLogger("mlx_skipspec")

SCHEMA = 1  # raise it when what is measured changes its meaning
CONTEXTS = (64, 1024)  # cache lengths measured at
WIDTHS = (1, 2, 3, 4, 5, 8, 12)  # passes measured; the others lie between
FEW = (1, 4)  # and the widest: enough at the longer context, where attention adds about the same for every row
STEPS = 3  # tokens per measured draft
ENOUGH = 5  # times each is measured, unless REPEAT_SECONDS are over
REPEAT_SECONDS = 1.0  # after which nothing is measured a second time
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def measure(
    target: Target,
    drafters: Sequence[Drafter],
    *,
    widest: int = WIDTHS[-1],
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Time passes of up to `widest` rows and the drafters' steps, in a cache of its own: about 2 s for a 135M model.

    The drafters have begun another text afterwards: `begin` them before they draft.
    """
    widths = sorted({width for width in WIDTHS if width < widest} | {1, widest})
    few = [width for width in widths if width in (*FEW, widest)]
    probes = [_Probe(target, drafters, context, clock) for context in CONTEXTS]
    plan = [(probe, width) for probe, some in zip(probes, (widths, few), strict=True) for width in some]
    passes: dict[tuple[_Probe, int], list[float]] = {at: [] for at in plan}
    drafts: dict[tuple[_Probe, int], list[float]] = {(p, i): [] for p in probes for i in range(len(drafters))}
    for width in (widest, 1):  # the first time kernels are compiled
        probes[0].verify(width)
    for i in range(len(drafters)):
        probes[0].draft(i)
    started = clock()
    for turn in range(ENOUGH):  # in turns, so that a slow moment of the machine meets all alike
        for probe_, width in plan:
            if turn == 0 or clock() - started < REPEAT_SECONDS:
                passes[probe_, width].append(probe_.verify(width))
        for probe_, i in drafts:
            if turn == 0 or clock() - started < REPEAT_SECONDS:
                drafts[probe_, i].append(probe_.draft(i))
    all_widths = list(range(1, widest + 1))
    short = _filled(all_widths, widths, [median_low(passes[probes[0], width]) for width in widths])
    added = [median_low(passes[probes[1], width]) - short[width - 1] for width in few]
    long = [a + b for a, b in zip(short, _filled(all_widths, few, added, monotone=False), strict=True)]
    costs = Costs(
        CONTEXTS,
        (tuple(short), tuple(max(a, b) for a, b in zip(short, long, strict=True))),
        {
            drafter.name: (median_low(drafts[probes[0], i]), median_low(drafts[probes[1], i]))
            for i, drafter in enumerate(drafters)
        },
    )
    for drafter in drafters:
        drafter.begin(target, target.make_kv())  # so that none of them keeps the rows
    del probes, plan, passes, drafts, probe_
    mx.clear_cache()
    return costs


class _Probe:
    """A cache of a given length with arbitrary rows in it, and what is timed there."""

    def __init__(self, target: Target, drafters: Sequence[Drafter], length: int, clock: Callable[[], float]) -> None:
        self.target, self.drafters, self.clock = target, drafters, clock
        self.context = [i % 16 % target.vocab_size for i in range(length + 1)]
        self.kv = target.make_kv()
        args = target.args
        rows = mx.random.normal((1, args.num_key_value_heads, length, args.head_dim), key=mx.random.key(0))
        for layer in self.kv.layers:  # an attention takes the same time whatever it looks at
            layer.update_and_fetch(rows.astype(target.dtype), rows.astype(target.dtype))
        mx.eval(self.kv.state)

    def verify(self, width: int) -> float:
        """Seconds of a pass as the loop does it: built, queued, read; a plain one builds the next before it reads."""
        length = self.kv.length
        tokens = mx.array(self.context[-1:] * width, dtype=mx.uint32)
        if width == 1:
            tokens = self._pass(tokens)  # its answer is the input of the step that is timed
            mx.eval(tokens)
        started = self.clock()
        truth = self._pass(tokens)
        mx.async_eval(truth)
        if width == 1:
            before = self.kv.hold()
            self._pass(truth)
            self.kv.put_back(before)
        truth.tolist()
        seconds = self.clock() - started
        self.kv.rewind_to(length)
        return seconds

    def _pass(self, tokens: mx.array) -> mx.array:  # (L,) -> (L,)
        logits, _ = self.target(tokens, self.kv)
        return mx.argmax(logits[0] - mx.logsumexp(logits[0], axis=-1, keepdims=True), axis=-1)

    def draft(self, i: int) -> float:
        """Seconds of one draft step, the mean of a few."""
        drafter = self.drafters[i]
        drafter.begin(self.target, self.kv)
        drafter.draft(self.context, 1)  # so that a lookup has read the text, of which a round only brings the end
        started = self.clock()
        mx.eval(drafter.draft(self.context, STEPS))
        return (self.clock() - started) / STEPS


def _filled(at: Sequence[int], known: Sequence[int], values: Sequence[float], monotone: bool = True) -> list[float]:
    """Values between the known ones. Noise only ever adds, so where a wider pass was faster, it says what is true."""
    if monotone:
        values = np.minimum.accumulate(values[::-1])[::-1].tolist()
    return [float(value) for value in np.interp(at, known, values)]


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
        _write(file, json.dumps({"about": about, "costs": costs.to_json()}, indent=1))
    except OSError as error:
        log.warning("the measured costs cannot be kept in %s (%s)", file.parent, error.strerror)
    return costs


def cache_folder() -> Path:
    """Where this user's things are kept that can be made again."""
    if chosen := os.environ.get("MLX_SKIPSPEC_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("mlx-skipspec")


def _write(file: Path, text: str) -> None:
    """A file that is there whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.stem}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(name, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


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
