"""A benchmark's figures for people: a table and a picture, both made from its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlx_skipspec.blas import NO_SPEED_UP, Blas
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.report import shares

PICTURES = (".png", ".svg", ".pdf")


def table(result: dict[str, Any]) -> str:
    """The block that `bench` prints."""
    blas, worst, prompt = Blas(**result["blas"]), result["worst_prompt"], result["with_prompt"]
    seconds, rates = result["prompt_seconds"], result["tok_s"]
    lines = [
        ("mode", f"{result['mode']}, at most {result['draft_tokens']} draft tokens, {result['dtype']}"),
        ("machine", f"{result['device']['cpu']}, {result['device']['device']}; {blas}"),
        ("identical", f"{result['identical']}/{result['prompts']} texts to mlx-lm's"),
        ("speed-up", f"{_speedup(result)}; mlx-lm {_number(rates['mlx_lm'])} tok/s, ours {_number(rates['ours'])}"),
        ("", "ratio of means behind the first token, its bootstrap interval over prompts, median of ratios"),
        ("with prompt", f"{_speedup(prompt)}; prompts took mlx-lm {seconds['mlx_lm']:.2f} s, us {seconds['ours']:.2f}"),
        ("predicted", f"{_number(result['predicted_speedup'])} by the formula, from v, d and what was accepted"),
        (
            "v",
            f"{_curve(result['verify_curve'])}: passes over 1, 2, … tokens ÷ over one, {result['context']} cached",
        ),
        ("d", ", ".join(f"{name} {cost:.3f}" for name, cost in result["draft_cost"].items()) or "nobody drafts"),
        ("per pass", f"{result['tokens_per_pass']:.2f} tokens"),
        ("accepted", shares(result["acceptance_by_position"]) + " at draft position 1, 2, … given all before"),
        *((f"  {name}", _source(source)) for name, source in result["by_source"].items()),
        ("by task", ", ".join(_task(name, task) for name, task in result["by_task"].items())),
        ("worst", f"{worst['speedup']:.2f}, {worst['id']} ({worst['task']})" if worst else "-"),
        ("memory", f"{result['peak_memory_ratio']:.3f} × mlx-lm's peak at most, same weights and prompt"),
    ]
    if blas.is_reference and "cpu" in result["device"]["device"]:
        lines.append(("note", NO_SPEED_UP))
    return "\n".join(f"{name:<12}{text}" for name, text in lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _curve(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _speedup(of: dict[str, Any]) -> str:
    if of["speedup"] is None:
        return "-"
    low, high = of["interval"]
    return f"{of['speedup']:.2f} ({low:.2f}–{high:.2f}), median {of['speedup_median']:.2f}"


def _source(source: dict[str, Any]) -> str:
    return (
        f"{source['accepted']}/{source['drafted']} in {source['rounds']} rounds: "
        f"{shares(source['acceptance_by_position'])}"
    )


def _task(name: str, task: dict[str, Any]) -> str:
    return f"{name} {_number(task['speedup'])} ({task['prompts']})"


def check_plot(file: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        SkipSpecError: no folder for it, a kind of picture matplotlib does not draw, or no matplotlib.
    """
    if file.suffix not in PICTURES:
        raise SkipSpecError(f"--plot {file} is no picture's name; need one that ends in {', '.join(PICTURES)}.")
    if file.is_dir() or not file.parent.is_dir():
        raise SkipSpecError(f"--plot {file} cannot be written; need a file name in a folder that exists.")
    if find_spec("matplotlib") is None:
        raise SkipSpecError("--plot found no matplotlib; need it to draw. Run: pip install 'mlx-skipspec[plot]'.")


def plot(result: dict[str, Any], file: Path) -> None:
    """Left what each prompt gained, by task; right what a pass over several tokens costs."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2))
    tasks = list(result["by_task"])
    gains = [(tasks.index(row["task"]), row["speedup"]) for row in result["rows"] if row["speedup"] is not None]
    left.plot([x for x, _ in gains], [gain for _, gain in gains], "o", alpha=0.5, label="a prompt")
    ratios = [result["by_task"][task]["speedup"] for task in tasks]
    left.plot(range(len(tasks)), [float("nan") if r is None else r for r in ratios], "_", ms=24, mew=2, label="task")
    left.axhline(1.0, color="grey", linewidth=0.8)
    left.set_xticks(range(len(tasks)), tasks, rotation=30, ha="right")
    left.set(ylabel="speed-up over mlx-lm", title=f"{result['mode']}: {_speedup(result)}")
    left.legend(fontsize=8)
    curve = result["verify_curve"]
    right.plot(range(1, len(curve) + 1), curve, "o-", label="v, measured")
    right.plot([1, len(curve)], [1, len(curve)], ":", color="grey", label="one token after another")
    right.set(xlabel="tokens in a pass", ylabel="÷ a plain step", title=str(Blas(**result["blas"])))
    right.set_xticks(range(1, len(curve) + 1))
    right.legend(fontsize=8)
    figure.savefig(file, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
