"""Several drafters against one plain decoding by mlx-lm, prompt by prompt in one process: `bench` for all of them.

    python benchmarks/speed.py --prompts FILE.jsonl --out FOLDER [--model MODEL] [--limit N] [--max-tokens 128]
                               [--drafters auto skip lookup] [--head auto] [--sidecar DIR] [--name qwen]

Writes what `mlx-skipspec bench --json` would have printed for each drafter, FOLDER/bench_[NAME_]DRAFTER.json, anew
after every prompt. Who goes first rotates from prompt to prompt. What the formula expects of v, d and the drafts there
were is printed beside what was measured. Last line of stdout: JSON, the speed-ups by drafter and task.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_skipspec.blas import with_openblas

if TYPE_CHECKING:
    from mlx_skipspec.bench import Bench, Pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: SmolLM2-135M-Instruct, fetched once")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--draft-tokens", type=int, default=7)
    parser.add_argument("--drafters", nargs="+", default=["auto", "skip", "lookup"])
    parser.add_argument("--head", default="auto")
    parser.add_argument("--sidecar", type=Path)
    parser.add_argument("--name", default="", help="goes into the files' names")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    blas = with_openblas()

    import mlx.core as mx
    from tqdm import tqdm

    from mlx_skipspec.bench import Item, drafters_in
    from mlx_skipspec.bench_commands import MEASURING_SECONDS
    from mlx_skipspec.bench_report import table
    from mlx_skipspec.bench_stats import as_json
    from mlx_skipspec.calibration import measure
    from mlx_skipspec.cost_files import machine
    from mlx_skipspec.loading import read_weights
    from mlx_skipspec.opening import open_model
    from mlx_skipspec.prompts import chat_ids, even_sample, read_prompts

    target, tokenizer = open_model(args.model, "float32")
    read_weights(target)
    gc.collect()
    contenders = benches(target, tokenizer, args, mx.get_active_memory())
    costs = {
        name: measure(target, drafters_in(bench.drafting.drafter), seconds=MEASURING_SECONDS)
        for name, bench in contenders.items()
    }
    items = [
        Item(prompt.id, prompt.task, chat_ids(tokenizer, prompt.text))
        for prompt in even_sample(list(read_prompts(args.prompts)), args.limit)
    ]
    pairs: dict[str, list[Pair]] = {name: [] for name in contenders}
    results: dict[str, dict[str, Any]] = {}
    answered(contenders, items[0], 0)  # warm-up
    for number, item in enumerate(tqdm(items, unit="prompt")):
        for name, pair in answered(contenders, item, number).items():
            pairs[name].append(pair)
            bench = contenders[name]
            results[name] = as_json(
                pairs[name],
                costs=costs[name],
                drafters=[one.name for one in drafters_in(bench.drafting.drafter)],
                draft_tokens=args.draft_tokens,
                blas=blas,
                device={key: value for key, value in machine().items() if key != "host"},
                mode=bench.drafting.mode,
                model=Path(args.model).name if args.model else "SmolLM2-135M-Instruct",
                dtype="float32",
                max_tokens=args.max_tokens,
                repeat=1,
            )
            file = args.out / f"bench_{'_'.join(filter(None, [args.name, name]))}.json"
            file.write_text(json.dumps(results[name], indent=1) + "\n", encoding="utf-8")
    for result in results.values():
        print(table(result), end="\n\n")
    print(json.dumps({name: {"all": of["speedup"]} | by_task(of) for name, of in results.items()}))


def benches(target: Any, tokenizer: Any, args: argparse.Namespace, weights_bytes: int) -> dict[str, Bench]:
    """One for each drafter; the model's own layers and their bridge are there once."""
    from mlx_skipspec.bench import Bench, drafters_in
    from mlx_skipspec.cost_files import costs_for
    from mlx_skipspec.drafters import PromptLookup
    from mlx_skipspec.drafting import Drafting, choose_drafter
    from mlx_skipspec.pace import Paced

    made: dict[str, Bench] = {}
    skip = choose_drafter(target, "skip", head=args.head, sidecar=args.sidecar)
    layers = drafters_in(skip.drafter)
    for name in args.drafters:
        drafting = {
            "skip": lambda: skip,
            "auto": lambda: Drafting(Paced([PromptLookup(), *layers]), f"lookup+{skip.mode}"),
        }.get(name, lambda name=name: choose_drafter(target, name))()
        costs_for(target, drafters_in(drafting.drafter), recalibrate=True)
        options = {"draft_tokens": args.draft_tokens, "max_tokens": args.max_tokens}
        made[name] = Bench(target, tokenizer, drafting, weights_bytes=weights_bytes, **options)
    return made


def answered(contenders: dict[str, Bench], item: Any, number: int) -> dict[str, Pair]:
    """Everybody's answer to one prompt, each beside the same plain one."""
    from mlx_skipspec.bench import Pair, drafters_in

    names = [None, *contenders]
    turn = number % len(names)
    plain, ours = None, {}
    for name in names[turn:] + names[:turn]:
        if name is None:
            plain = next(iter(contenders.values())).plain(item.tokens)
        else:
            bench = contenders[name]
            ours[name] = bench.ours(item.tokens)
            for drafter in drafters_in(bench.drafting.drafter):
                drafter.begin(bench.target, bench.target.make_kv())  # or its cache would count as the next one's
    assert plain is not None
    return {name: Pair(item.id, item.task, len(item.tokens), plain, *answer) for name, answer in ours.items()}


def by_task(result: dict[str, Any]) -> dict[str, float]:
    return {task: of["speedup"] for task, of in result["by_task"].items()}


if __name__ == "__main__":
    main()
