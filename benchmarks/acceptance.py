"""How often the target agrees with a skip's drafts, by draft position, in the real loop.

    python benchmarks/acceptance.py --prompts FILE.jsonl [--model MODEL] [--sidecar DIR] [--limit N] [--max-tokens 64]
                                    [--draft-tokens 3] [--temp 0]

Greedy or sampled, chat template, the drafter not paced. The tokens per pass expected from the acceptances, which are
1 + α1 + α1·α2 + …, stand beside the measured ones: they differ where texts end. Last line of stdout: JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from blas import with_openblas
from tqdm import tqdm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--sidecar", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--temp", type=float, default=0.0)
    args = parser.parse_args()
    blas = with_openblas()

    from mlx_skipspec.api import stream_generate
    from mlx_skipspec.commands import open_model
    from mlx_skipspec.drafting import choose_drafter
    from mlx_skipspec.prompts import chat_ids, read_prompts
    from mlx_skipspec.sampling import Sampler
    from mlx_skipspec.stats import Stats

    target, tokenizer = open_model(args.model, "auto")
    sampler = Sampler(temperature=args.temp)
    drafting = choose_drafter(target, "skip", sidecar=args.sidecar, sampler=sampler)
    stats, prompts = Stats(), list(read_prompts(args.prompts, args.limit))
    for _, prompt in tqdm(prompts, unit="prompt"):
        ids = chat_ids(tokenizer, prompt)
        for response in stream_generate(
            target,
            tokenizer,
            ids,
            args.max_tokens,
            drafting=drafting,
            draft_tokens=args.draft_tokens,
            sampler=sampler,
        ):
            last = response
        stats.merge(last.stats)
    shares = stats.acceptance_by_position()
    expected = reached = 1.0
    for share in shares:
        reached *= share or 0.0
        expected += reached
    print(f"{drafting.mode}: tokens per pass expected {expected:.3f}, measured {stats.tokens_per_pass:.3f}")
    result = {"prompts": len(prompts), "mode": drafting.mode, "acceptance_by_position": shares}
    print(json.dumps(result | {"tokens_per_pass": stats.tokens_per_pass, "expected": expected, **blas}))


if __name__ == "__main__":
    main()
