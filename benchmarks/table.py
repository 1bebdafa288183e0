"""The README's speed table, made from the committed results: one row for each `benchmarks/results/*/bench*.json`.

    python benchmarks/table.py            # writes the table into README.md
    python benchmarks/table.py --check    # exit 1 when README.md says something else

A result is what `mlx-skipspec bench --json > benchmarks/results/MACHINE/bench_NAME.json` printed, or `speed.py` wrote.
The README holds the table between two lines, and nothing else of it is touched:

    <!-- speed: python benchmarks/table.py -->
    <!-- /speed -->
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mlx_skipspec.blas import Blas

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- speed: python benchmarks/table.py -->\n", "<!-- /speed -->"
HEADER = (
    "machine, BLAS",
    "model",
    "mode",
    "speed-up over mlx-lm (95 %)",
    "median",
    "by task",
    "worst prompt",
    "predicted",
    "tokens per pass",
    "memory",
    "identical",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the README differs")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    files = sorted(args.results.glob("*/bench*.json"))
    if not files:
        refuse(f"{args.results} has no */bench*.json; need one. Run mlx-skipspec bench --json and keep what it prints.")
    text = args.readme.read_text(encoding="utf-8")
    made = with_table(text, [(file, json.loads(file.read_text(encoding="utf-8"))) for file in files])
    if made is None:
        refuse(f"{args.readme} has no place for the table; need the lines {BEGIN.strip()} and {END}, once each.")
    if args.check and made != text:
        print(f"{args.readme} and {args.results} differ; run python benchmarks/table.py", file=sys.stderr)
        sys.exit(1)
    if not args.check:
        args.readme.write_text(made, encoding="utf-8")


def refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def with_table(text: str, results: list[tuple[Path, dict[str, Any]]]) -> str | None:
    """`text` with the table in its place; None where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in before + after:
        return None
    rows = [HEADER, ["---"] * len(HEADER), *(row(file, result) for file, result in results)]
    return before + begin + "".join(f"| {' | '.join(cells)} |\n" for cells in rows) + end + after


def row(file: Path, result: dict[str, Any]) -> list[str]:
    low, high = result["interval"]
    worst, prompts = result["worst_prompt"], result["prompts"]
    return [
        f"{file.parent.name}, {Blas(**result['blas'])}",
        f"{result['model']}, {result['dtype']}",
        result["mode"],
        f"**{result['speedup']:.2f}** ({low:.2f}–{high:.2f})",
        f"{result['speedup_median']:.2f}",
        ", ".join(f"{task} {of['speedup']:.2f}" for task, of in result["by_task"].items()),
        f"{worst['speedup']:.2f} ({worst['task']})",
        f"{result['predicted_speedup']:.2f}",
        f"{result['tokens_per_pass']:.2f}",
        f"{result['peak_memory_ratio']:.2f} ×",
        f"{result['identical']} / {prompts}",
    ]


if __name__ == "__main__":
    main()
