"""Which layers to keep: acceptance by draft position of plans that keep equally many, in the real loop, greedy.

    python benchmarks/plan_sweep.py --model MODEL --text FILE… --prompts FILE.jsonl [--keep 4] [--limit 8]
                                    [--windows 60] [--minutes 2] [--out FILE.json]

A contiguous gap, early exit, late start and periodic; each without a bridge and with a least-squares bridge over every
run of layers it skips; the two best contiguous ones trained for some minutes as well. The thesis expects the gap ahead
of early exit, and late start and periodic behind. Writes FILE.json and FILE.png; last line of stdout: JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from mlx_skipspec.blas import with_openblas

POSITIONS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--keep", type=int, default=4)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    blas = with_openblas()
    rows = Sweep(args).rows()
    result = {
        "model": Path(args.model).name,
        "keep": args.keep,
        "prompts": args.limit,
        "rows": rows,
        "blas": asdict(blas),
    }
    for row in rows:
        shares = " ".join(f"{share:.2f}" for share in row["acceptance_by_position"])
        print(f"{row['plan']:12} {row['bridge']:14} {shares}   tokens per pass {row['tokens_per_pass']:.2f}")
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        plot(rows, f"{result['model']}, {args.keep} layers kept", args.out.with_suffix(".png"))


class Sweep:
    def __init__(self, args: argparse.Namespace) -> None:
        import numpy as np

        from mlx_skipspec.convert.corpus import windows
        from mlx_skipspec.opening import open_model
        from mlx_skipspec.plan import SkipPlan
        from mlx_skipspec.prompts import chat_ids, even_sample, read_prompts

        self.args = args
        self.target, tokenizer = open_model(args.model, "auto")
        found = list(islice(windows(args.text, tokenizer, 256), args.windows))
        self.text, self.scored = [window.ids for window in found], np.array([window.scored for window in found])
        encode = chat_ids if tokenizer.has_chat_template else lambda tokenizer, text: tokenizer.encode(text)
        sample = even_sample(list(read_prompts(args.prompts)), args.limit)
        self.prompts = [encode(tokenizer, prompt.text) for prompt in sample]
        depth, keep = self.target.depth, args.keep
        self.plans = {
            "gap": SkipPlan.gap(depth, keep // 2, keep - keep // 2),
            "early exit": SkipPlan.early_exit(depth, keep),
            "late start": SkipPlan.late_start(depth, keep),
            "periodic": SkipPlan.periodic(depth, keep),
        }

    def rows(self) -> list[dict[str, Any]]:
        from mlx_skipspec.drafters import LayerSkip
        from mlx_skipspec.hvc import HVC

        found = [self.row(name, "none", LayerSkip(plan)) for name, plan in self.plans.items()]
        fitted = self.fitted()
        bridged = []
        for name, plan in self.plans.items():
            bridges = {gap: HVC.from_tensors(fitted[gap], self.target.dtype) for gap in gaps(plan)}
            bridged.append(self.row(name, "least squares", bridged_skip(plan, bridges)))
        best = sorted(bridged, key=lambda row: -row["tokens_per_pass"])
        for name in [row["plan"] for row in best if self.plans[row["plan"]].contiguous][:2]:
            plan = self.plans[name]
            bridge = HVC.from_tensors(self.trained(plan, fitted[gaps(plan)[0]]), self.target.dtype)
            bridged.append(self.row(name, "trained", LayerSkip(plan, bridge)))
        return found + bridged

    def row(self, name: str, bridge: str, drafter: Any) -> dict[str, Any]:
        from mlx_skipspec.convert.fit import measure

        stats = measure(self.target, drafter, self.prompts, self.args.max_tokens)
        shares = [share or 0.0 for share in stats.acceptance_by_position()]
        shares += [0.0] * (POSITIONS - len(shares))
        row = {"plan": name, "layers": list(self.plans[name].kept), "bridge": bridge}
        return row | {"acceptance_by_position": shares, "tokens_per_pass": stats.tokens_per_pass}

    def fitted(self) -> dict[tuple[int, int], dict[str, Any]]:
        """A least-squares bridge over every run of layers that a plan skips, from one reading."""
        import mlx.core as mx
        import numpy as np

        from mlx_skipspec.convert.closed_form import NormalEquations
        from mlx_skipspec.convert.closed_form_mlx import layer_norm

        target = self.target
        sums = {gap: NormalEquations(target.hidden_size) for plan in self.plans.values() for gap in gaps(plan)}
        for window in self.text:
            kv, states = target.make_kv(), [target.embed(mx.array(window))]
            for i in target.layers:
                states.append(target.run(states[-1], [i], kv))
            last = layer_norm(states[-1])[0, :-1]
            for (start, stop), equations in sums.items():
                f = mx.concatenate([layer_norm(states[start])[0, 1:], last], axis=-1)
                g = (states[stop] - states[start])[0, 1:].astype(mx.float32)
                equations.add(np.array(f.T @ f), np.array(f.T @ g))
        return {gap: equations.solve() for gap, equations in sums.items()}

    def trained(self, plan: Any, start: dict[str, Any]) -> dict[str, Any]:
        """From the least-squares start, trained for `minutes`; the first windows are held out."""
        import mlx.core as mx
        import numpy as np

        from mlx_skipspec.convert.checkpoints import Checkpoints
        from mlx_skipspec.convert.fit import as_numpy
        from mlx_skipspec.convert.fit_training import FitTraining, features_of
        from mlx_skipspec.convert.head_rows import most_frequent
        from mlx_skipspec.hvc import HVC

        features = [as_numpy(features_of(self.target, plan, window)) for window in self.text]
        held_out = [
            ({name: mx.array(value) for name, value in window.items()}, scored[None])
            for window, scored in zip(features[:8], self.scored[:8], strict=True)
        ]
        rest = features[8:]
        with tempfile.TemporaryDirectory() as folder:
            training = FitTraining(
                self.target,
                plan,
                HVC.from_tensors(start),
                lambda at: {name: np.concatenate([rest[i][name] for i in at]) for name in rest[0]},
                self.scored[8:],
                held_out,
                most_frequent(np.array(self.text), self.target.vocab_size),
                Checkpoints(Path(folder) / "training", {}),
                start,
            )
            training.train(60 * self.args.minutes, lambda seconds, words: None)
        return {name: np.array(value) for name, value in training.best.items()}


def gaps(plan: Any) -> list[tuple[int, int]]:
    """The runs of layers a plan skips: first, and behind the last."""
    runs = [list(run) for skipped, run in groupby(range(plan.depth), lambda i: i not in plan.kept) if skipped]
    return [(run[0], run[-1] + 1) for run in runs]


def bridged_skip(plan: Any, bridges: dict[tuple[int, int], Any]) -> Any:
    """A skip with a bridge over each run of layers it leaves out; the product bridges one."""
    from mlx_skipspec.drafters import LayerSkip

    class Bridged(LayerSkip):
        def step(self, token: Any, r: Any) -> Any:
            h, at = self.target.embed(token), 0
            for (start, stop), bridge in bridges.items():
                h = bridge(self.target.run(h, range(at, start), self.kv), r)
                at = stop
            return self.target.run(h, range(at, plan.depth), self.kv)

    return Bridged(plan)


def plot(rows: Sequence[dict[str, Any]], title: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    styles = {"none": ":", "least squares": "--", "trained": "-"}
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(row["plan"] for row in rows))}
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for row in rows:
        axes.plot(
            range(1, POSITIONS + 1),
            row["acceptance_by_position"][:POSITIONS],
            styles[row["bridge"]],
            marker="o",
            color=colours[row["plan"]],
            label=f"{row['plan']}, bridge: {row['bridge']}",
        )
    axes.set(title=title, xlabel="draft position", ylabel="accepted, given all before", ylim=(0, 1))
    axes.set_xticks(range(1, POSITIONS + 1))
    axes.legend(fontsize=7)
    figure.savefig(file, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
