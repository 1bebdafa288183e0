"""Is our plain loop as fast as mlx-lm's? Paired runs in one process, alternating order.

    python benchmarks/plain_loop.py [--model MODEL] [--prompts FILE.jsonl] [--limit 8] [--max-tokens 64] [--repeat 3]
                                    [--drafter none]

Expected: 1.00, since both do the same work and queue the next pass before they read the last one's token. With a
drafter, the same comparison for a loop that is not plain. On Linux the script starts itself again with OpenBLAS
preloaded where it is found. Last line of stdout: JSON with `ratio`, ours over mlx-lm's generation tok/s, the median
over pairs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path

from mlx_skipspec.blas import with_openblas

PROMPTS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about rain.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--drafter", default="none", choices=["none", "auto", "skip", "lookup"])
    args = parser.parse_args()
    blas = with_openblas()

    import mlx_lm

    from mlx_skipspec.api import stream_generate
    from mlx_skipspec.check import mlx_lm_model
    from mlx_skipspec.drafting import choose_drafter
    from mlx_skipspec.opening import open_model
    from mlx_skipspec.prompts import chat_ids, read_prompts

    target, tokenizer = open_model(args.model, "auto")
    theirs = mlx_lm_model(target)
    drafting = choose_drafter(target, args.drafter)
    texts = [prompt.text for prompt in read_prompts(args.prompts, args.limit)] if args.prompts else list(PROMPTS)

    def ours(ids: list[int]) -> float:
        return seconds_per_token(
            r.token for r in stream_generate(target, tokenizer, ids, args.max_tokens, drafting=drafting)
        )

    def mlx_lms(ids: list[int]) -> float:
        return seconds_per_token(r.token for r in mlx_lm.stream_generate(theirs, tokenizer, ids, args.max_tokens))

    prompts = [chat_ids(tokenizer, text) for text in texts]
    ours(prompts[0]), mlx_lms(prompts[0])  # warm-up
    ratios = []
    for (repeat, ids), turn in zip(itertools.product(range(args.repeat), prompts), itertools.cycle((0, 1))):
        runs = {run: run(ids) for run in ((ours, mlx_lms) if turn else (mlx_lms, ours))}
        ratios.append(runs[mlx_lms] / runs[ours])
        print(
            f"repeat {repeat}: mlx-lm {1 / runs[mlx_lms]:.2f} tok/s, ours {1 / runs[ours]:.2f}, ratio {ratios[-1]:.3f}"
        )
    low, _, high = statistics.quantiles(ratios, n=4)
    print("expected 1.00" if args.drafter == "none" else f"mode {drafting.mode}")
    result = {
        "drafter": args.drafter,
        "ratio": statistics.median(ratios),
        "quartiles": [low, high],
        "pairs": len(ratios),
        "blas": asdict(blas),
    }
    print(json.dumps(result))


def seconds_per_token(tokens: object) -> float:
    """From the first token on; the prompt is not counted."""
    started, count = 0.0, 0
    for _ in tokens:
        now = time.perf_counter()
        started = started or now
        count += 1
    return (now - started) / max(count - 1, 1)


if __name__ == "__main__":
    main()
