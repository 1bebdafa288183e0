"""How often the target agrees with a skip's drafts, by draft position, in the real loop.

    python benchmarks/acceptance.py --prompts FILE.jsonl [--model MODEL] [--sidecar DIR] [--limit N] [--max-tokens 64]
                                    [--draft-tokens 2] [--temp 0] [--head auto] [--jobs 1] [--out FILE.json]

Greedy or sampled, chat template, the drafter not paced. Beside the figures over all prompts stand those by task (the
prompts' "category") and those of the answers that never repeat 8 tokens: a text that loops is easy to draft. The tokens
per pass expected from the acceptances, which are 1 + α1 + α1·α2 + …, stand beside the measured ones: they differ where
texts end. With --limit, an even sample. Last line of stdout: JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mlx_skipspec.blas import with_openblas
from mlx_skipspec.prompts import Prompt, even_sample, read_prompts

if TYPE_CHECKING:
    from mlx_skipspec.stats import Stats

Group = tuple[int, "Stats"]  # prompts, and what became of their drafts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--sidecar", type=Path)
    parser.add_argument("--head", default="auto")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=2)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the prompts")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    blas = with_openblas()
    prompts = even_sample(list(read_prompts(args.prompts)), args.limit)
    shares = [(args, prompts[i :: args.jobs]) for i in range(args.jobs)]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        parts = pool.starmap(measure, shares)
    groups = {name: joined([part[1][name] for part in parts if name in part[1]]) for name in names(parts)}
    about = {"draft_tokens": args.draft_tokens, "max_tokens": args.max_tokens, "temp": args.temp}
    result = {
        "mode": parts[0][0],
        **about,
        **{name: figures(*group) for name, group in groups.items()},
        "blas": asdict(blas),
    }
    for name in groups:
        row = result[name]
        positions = " ".join(f"{share:.3f}" for share in row["acceptance_by_position"])
        print(
            f"{name:24} {row['prompts']:4} prompts: {positions}   tokens per pass {row['tokens_per_pass']:.3f}, "
            f"expected {row['expected']:.3f}"
        )
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(args: argparse.Namespace, prompts: list[Prompt]) -> tuple[str, dict[str, Group]]:
    """The drafter's mode, and what became of the drafts of each group of prompts."""
    from mlx_skipspec.api import stream_generate
    from mlx_skipspec.drafting import choose_drafter
    from mlx_skipspec.opening import open_model
    from mlx_skipspec.prompts import chat_ids
    from mlx_skipspec.sampling import Sampler

    target, tokenizer = open_model(args.model, args.dtype)
    sampler = Sampler(temperature=args.temp)
    drafting = choose_drafter(target, "skip", sidecar=args.sidecar, head=args.head, sampler=sampler)
    drafting = replace(drafting, drafter=drafting.unpaced)
    options = {"drafting": drafting, "draft_tokens": args.draft_tokens, "sampler": sampler}
    groups: dict[str, Group] = {}
    for prompt in tqdm(prompts, unit="prompt"):
        ids = chat_ids(tokenizer, prompt.text)
        responses = list(stream_generate(target, tokenizer, ids, args.max_tokens, **options))
        of = ["all", f"task {prompt.task}"]
        if not repeats([response.token for response in responses]):
            of.append("no repeated 8-gram")
        for name in of:
            groups[name] = joined([*filter(None, [groups.get(name)]), (1, responses[-1].stats)])
    return drafting.mode, groups


def names(parts: list[tuple[str, dict[str, Group]]]) -> list[str]:
    return sorted({name for _, groups in parts for name in groups})


def joined(groups: list[Group]) -> Group:
    from mlx_skipspec.stats import Stats

    total = Stats()
    for _, stats in groups:
        total.merge(stats)
    return sum(count for count, _ in groups), total


def repeats(tokens: list[int], length: int = 8) -> bool:
    """Whether some `length` tokens come twice."""
    grams = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    return len(set(grams)) < len(grams)


def figures(prompts: int, stats: Stats) -> dict[str, Any]:
    shares = [share or 0.0 for share in stats.acceptance_by_position()]
    expected = reached = 1.0
    for share in shares:
        reached *= share
        expected += reached
    return {
        "prompts": prompts,
        "rounds": stats.passes,
        "acceptance_by_position": shares,
        "tokens_per_pass": stats.tokens_per_pass,
        "expected": expected,
    }


if __name__ == "__main__":
    main()
