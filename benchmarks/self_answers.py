"""Write the model's own greedy answers to a file of prompts, as text to fit a bridge on.

    python benchmarks/self_answers.py --model MODEL --prompts PROMPTS.jsonl --out ANSWERS.jsonl

Each line gets {"prompt", "answer"}. Prompts are answered in batches by mlx-lm; finished batches stay in the file, and
a second run goes on behind them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import mlx_lm
from tqdm import tqdm

BATCH = 24
LONGEST_PROMPT = 400  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()
    model, tokenizer = mlx_lm.load(args.model)
    prompts = [json.loads(line)["prompt"] for line in args.prompts.open(encoding="utf-8")]
    done = set()
    if args.out.exists():
        done = {json.loads(line)["prompt"] for line in args.out.open(encoding="utf-8")}
    ids = {
        prompt: tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
        for prompt in prompts
        if prompt not in done
    }
    todo = sorted((p for p in ids if len(ids[p]) <= LONGEST_PROMPT), key=lambda p: len(ids[p]))
    with args.out.open("a", encoding="utf-8") as out:
        for start in tqdm(range(0, len(todo), BATCH), unit="batch"):
            batch = todo[start : start + BATCH]
            response = mlx_lm.batch_generate(model, tokenizer, [ids[p] for p in batch], max_tokens=args.max_tokens)
            for prompt, answer in zip(batch, response.texts, strict=True):
                out.write(json.dumps({"prompt": prompt, "answer": answer}, ensure_ascii=False) + "\n")
            out.flush()
    print(json.dumps({"answers": len(todo), "out": args.out.name}))


if __name__ == "__main__":
    main()
