"""Others who draft without a second model, on the same weights and prompts, each against its own plain decoding.

    python benchmarks/peers.py --model FOLDER --prompts FILE.jsonl [--limit N] [--max-tokens 64] [--draft-tokens 3]
                               [--exit-layer 4] [--out FILE.json]

Needs the extra `peers` and a float32 checkpoint that mlx-lm and transformers both read. Greedy, one process, as many
torch threads as BLAS threads; who goes first rotates from prompt to prompt. Speed is tokens over seconds, the prompt's
pass included (transformers does not tell them apart). mlx-lm's draft model is the model's own first layers under its
own head, sharing every weight; transformers' `assistant_early_exit` is the same idea. Neither was trained for it, so
expect them to lose; expect prompt lookup to gain where answers copy. Last line of stdout: JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlx_skipspec.blas import Blas, with_openblas

Answer = Callable[[list[int]], list[int]]
MLX, TORCH = "mlx-lm", "transformers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--exit-layer", type=int, default=4, help="first layers that draft for mlx-lm and transformers")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    blas = with_openblas()

    from tqdm import tqdm

    from mlx_skipspec.bench_stats import interval, speedup, speedup_median
    from mlx_skipspec.opening import open_model
    from mlx_skipspec.prompts import chat_ids, even_sample, read_prompts

    target, tokenizer = open_model(args.model, "float32")
    contenders = mlx_contenders(target, tokenizer, args) | torch_contenders(target.folder, tokenizer, args, blas)
    prompts = [chat_ids(tokenizer, prompt.text) for prompt in even_sample(list(read_prompts(args.prompts)), args.limit)]
    for answer in contenders.values():
        answer(prompts[0])  # warm-up
    tok_s: dict[str, list[float]] = {name: [] for name in contenders}
    same = dict.fromkeys(contenders, 0)
    for number, ids in enumerate(tqdm(prompts, unit="prompt")):
        answers = {}
        for name in rotated(list(contenders), number):
            started = time.perf_counter()
            answers[name] = contenders[name](ids)
            tok_s[name].append(len(answers[name]) / (time.perf_counter() - started))
        for name in contenders:
            same[name] += answers[name] == answers[own_plain(name)]
    rows = {}
    for name in contenders:
        rates = list(zip(tok_s[own_plain(name)], tok_s[name], strict=True))
        rows[name] = {
            "tok_s": sum(tok_s[name]) / len(prompts),
            "against": own_plain(name),
            "speedup": speedup(rates),
            "speedup_median": speedup_median(rates),
            "interval": interval(rates),
            "identical": same[name],
        }
        low, high = rows[name]["interval"]
        print(
            f"{name:40} {rows[name]['tok_s']:7.2f} tok/s, {rows[name]['speedup']:.2f} ({low:.2f}–{high:.2f}) × "
            f"{own_plain(name)}, {same[name]}/{len(prompts)} texts the same"
        )
    about = {key: getattr(args, key) for key in ("max_tokens", "draft_tokens", "exit_layer")}
    result = {"model": Path(args.model).name, "prompts": len(prompts), **about, "rows": rows, "blas": asdict(blas)}
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def own_plain(name: str) -> str:
    return TORCH if name.startswith(TORCH) else MLX


def rotated(names: Sequence[str], by: int) -> list[str]:
    at = by % len(names)
    return [*names[at:], *names[:at]]


def mlx_contenders(target: Any, tokenizer: Any, args: argparse.Namespace) -> dict[str, Answer]:
    import mlx_lm

    from mlx_skipspec.api import stream_generate
    from mlx_skipspec.check import OurBlocks, mlx_lm_cache, mlx_lm_model
    from mlx_skipspec.drafting import choose_drafter
    from mlx_skipspec.loading import read_weights

    read_weights(target)
    theirs, draft = mlx_lm_model(target), mlx_lm_model(target)

    def plain(ids: list[int]) -> list[int]:
        cache = mlx_lm_cache(target, theirs, None)
        return [r.token for r in mlx_lm.stream_generate(theirs, tokenizer, ids, args.max_tokens, prompt_cache=cache)]

    def speculative(ids: list[int]) -> list[int]:
        options = {"draft_model": draft, "num_draft_tokens": args.draft_tokens}
        return [r.token for r in mlx_lm.stream_generate(theirs, tokenizer, ids, args.max_tokens, **options)]

    def ours(choice: str) -> Answer:
        options = {"drafting": choose_drafter(target, choice), "draft_tokens": args.draft_tokens}
        return lambda ids: [r.token for r in stream_generate(target, tokenizer, ids, args.max_tokens, **options)]

    contenders = {MLX: plain, "mlx-skipspec none": ours("none"), "mlx-skipspec auto": ours("auto")}
    if not isinstance(draft, OurBlocks):  # which mlx-lm's speculative loop could not rewind
        draft.model.layers = draft.model.layers[: args.exit_layer]
        contenders[f"{MLX} draft model, first {args.exit_layer} layers"] = speculative
    return contenders


def torch_contenders(folder: Path | None, tokenizer: Any, args: argparse.Namespace, blas: Blas) -> dict[str, Answer]:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    if blas.threads is not None:
        torch.set_num_threads(blas.threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    eos = sorted(tokenizer.eos_token_ids)

    def answer(**options: Any) -> Answer:
        def run(ids: list[int]) -> list[int]:
            prompt = torch.tensor([ids])
            with torch.inference_mode():
                whole = model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=args.max_tokens,
                    do_sample=False,
                    eos_token_id=eos,
                    pad_token_id=eos[0],
                    **options,
                )
            return whole[0, len(ids) :].tolist()

        return run

    return {
        TORCH: answer(),
        f"{TORCH} prompt_lookup_num_tokens={args.draft_tokens}": answer(prompt_lookup_num_tokens=args.draft_tokens),
        f"{TORCH} assistant_early_exit={args.exit_layer}": answer(
            assistant_early_exit=args.exit_layer, num_assistant_tokens=args.draft_tokens
        ),
    }


if __name__ == "__main__":
    main()
