"""What this machine is, what a model's passes cost on it, and what speed-up to expect of that."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import mlx.nn as nn

from mlx_skipspec.bench import drafters_in
from mlx_skipspec.bench_stats import draft_cost, verify_curve
from mlx_skipspec.blas import NO_SPEED_UP, Blas, openblas
from mlx_skipspec.calibration import measure
from mlx_skipspec.cost_files import machine
from mlx_skipspec.drafting import choose_drafter, find_sidecar
from mlx_skipspec.report import shares
from mlx_skipspec.target import Target

WIDEST, CONTEXT = 8, 256  # tokens in a pass, tokens cached
LINEAR = 0.75  # of a plain step: above it, a verified token costs about what a plain one does
OLD_GPUS = {"applegpu_g13": "M1", "applegpu_g14": "M2"}
QUANTISED = (nn.QuantizedLinear, nn.QuantizedEmbedding)


def examine(blas: Blas) -> dict[str, Any]:
    """The machine and what is installed on it."""
    packages = {name: version(name) for name in ("mlx", "mlx-lm", "mlx-skipspec")}
    return {
        "versions": {"python": platform.python_version(), "os": platform.platform(), **packages},
        "device": {key: value for key, value in machine().items() if key != "host"},
        "blas": asdict(blas),
        "model": None,
    }


def examine_model(target: Target, name: str) -> dict[str, Any]:
    """What passes and draft steps of a model cost here, and the speed-up that follows from its sidecar's acceptance."""
    sidecar = find_sidecar(target)
    drafting = choose_drafter(target, "skip" if sidecar else "lookup")
    drafters = drafters_in(drafting.drafter)
    costs = measure(target, drafters, widest=WIDEST)
    v, d = verify_curve(costs, WIDEST, CONTEXT), draft_cost(costs, [one.name for one in drafters], CONTEXT)
    accepted = [share or 0.0 for share in sidecar.acceptance_by_position] if sidecar else []
    draft_tokens, speedup = expected(accepted, v, d.get("skip", 0.0))
    return {
        "name": name,
        "layers": target.depth,
        "dtype": str(target.dtype).rpartition(".")[2],
        "quantised": any(isinstance(module, QUANTISED) for _, module in target.model.named_modules()),
        "plain_tok_s": 1 / costs.verify(1, CONTEXT),
        "verify_curve": v,
        "draft_cost": d,
        "mode": drafting.mode if sidecar else None,
        "acceptance_by_position": accepted,
        "draft_tokens": draft_tokens,
        "expected_speedup": speedup if sidecar else None,
    }


def expected(acceptance: Sequence[float], v: Sequence[float], d: float) -> tuple[int, float]:
    """The number of draft tokens that pays best and its speed-up, (1 + α1 + α1·α2 + …) / (v(k + 1) + k·d) (SCIENCE.md
    §4); k = 0 is plain decoding. Of positions nobody measured nothing is expected."""
    best, emitted, reached = (0, 1.0), 1.0, 1.0
    for k, share in enumerate(acceptance[: len(v) - 1], 1):
        reached *= share
        emitted += reached
        best = max(best, (k, emitted / (v[k] + k * d)), key=lambda found: found[1])
    return best


def advice(found: dict[str, Any]) -> list[str]:
    """What to do about it, in sentences."""
    lines, on_cpu, model = [], "cpu" in found["device"]["device"], found["model"]
    if on_cpu and Blas(**found["blas"]).is_reference:
        library = openblas()
        lines.append(
            f"{NO_SPEED_UP.partition('. ')[0]}. Start it as: LD_PRELOAD={library} OPENBLAS_NUM_THREADS=1 mlx-skipspec …"
            if library
            else NO_SPEED_UP
        )
    chip = next((chip for gpu, chip in OLD_GPUS.items() if found["device"]["gpu"][0].startswith(gpu)), None)
    if chip is not None and not on_cpu:
        lines.append(
            f"An {chip} verifies several tokens at nearly the price of as many plain steps: expect a gain only from "
            "text that repeats itself (--drafter lookup), and measure it with mlx-skipspec bench."
        )
    if model is None:
        return [*lines, "Give --model to measure what its passes cost here and what speed-up to expect."]
    if on_cpu and model["quantised"]:
        lines.append("Quantised weights are many times slower than float32 on a CPU; use --dtype float32.")
    v = model["verify_curve"]
    if (more := (v[-1] - v[0]) / (len(v) - 1)) > LINEAR:
        lines.append(f"A verified token costs {more:.2f} of a plain step here, so drafting can hardly pay.")
    if model["mode"] is None:
        lines.append("This model has no sidecar: only lookup drafts. Make one: mlx-skipspec fit --model … --out DIR.")
    elif model["draft_tokens"] == 0:
        lines.append("The layers' drafts do not pay here by the formula; `auto` will hardly use them, lookup remains.")
    else:
        lines.append(
            f"By the formula drafting {model['draft_tokens']} pays best (--draft-tokens). A sidecar's own figures "
            "flatter it where they were taken along a text; mlx-skipspec bench measures on your prompts."
        )
    return lines


def text(found: dict[str, Any]) -> str:
    """What `doctor` prints."""
    device, model = found["device"], found["model"]
    rows = [
        ("chip", f"{device['cpu']}, {device['cores']} cores"),
        ("device", ", ".join(filter(None, [device["device"], *device["gpu"]]))),
        ("BLAS", str(Blas(**found["blas"]))),
        *found["versions"].items(),
    ]
    if model is not None:
        costs = ", ".join(f"{name} {cost:.3f}" for name, cost in model["draft_cost"].items())
        quantised = ", quantised" if model["quantised"] else ""
        rows += [
            ("model", f"{model['name']}: {model['layers']} layers, {model['dtype']}{quantised}"),
            ("plain", f"{model['plain_tok_s']:.1f} tok/s with {CONTEXT} tokens cached"),
            (
                "v",
                " ".join(f"{value:.2f}" for value in model["verify_curve"]) + ": passes over 1, 2, … tokens ÷ over one",
            ),
            ("d", f"{costs}: a draft step ÷ a plain step"),
        ]
        if model["mode"] is not None:
            rows += [
                ("sidecar", f"{model['mode']}: accepted {shares(model['acceptance_by_position'])}, says who made it"),
                (
                    "expected",
                    f"{model['expected_speedup']:.2f} from the layers alone, drafting {model['draft_tokens']}",
                ),
            ]
    return "\n".join(f"{name:<13}{line}" for name, line in [*rows, *(("advice", line) for line in found["advice"])])
