"""How soon does a second turn begin to answer, on the cache that was kept and after a fresh prefill?

    python benchmarks/chat_turns.py [--model MODEL] [--history 1000] [--repeat 5] [--drafter auto] [--max-kv-size N]

A first turn of about `--history` tokens is asked and answered; then a short question, on the kept cache, and the same
prompt on an empty one, in turns (the kept cache is brought back by /undo, as in the chat). Expected: as many target
rows as there are new tokens, so their share of the prompt if prefill time is linear in rows, a little more for the pass
that gives the first token. On Linux the script starts itself again with OpenBLAS preloaded where it is found. Last line
of stdout: JSON with `ratio`, kept over fresh seconds to the first token, the median over pairs.
"""

from __future__ import annotations

import argparse
import json
import pydoc
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any

from mlx_skipspec.blas import with_openblas

QUESTIONS = ("What is it about?", "Say it in one sentence.", "Who is it for?")
ANSWER = 32  # tokens of the first answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--history", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--drafter", default="auto", choices=["none", "auto", "skip", "lookup"])
    parser.add_argument("--max-kv-size", type=int)
    args = parser.parse_args()
    blas = with_openblas()

    from mlx_skipspec.api import stream_generate
    from mlx_skipspec.conversation import Conversation
    from mlx_skipspec.drafting import choose_drafter
    from mlx_skipspec.opening import open_model

    target, tokenizer = open_model(args.model, "auto")
    talk = Conversation(
        target,
        tokenizer,
        choose=lambda sampler: choose_drafter(target, args.drafter, sampler=sampler),
        max_tokens=ANSWER,
        max_kv_size=args.max_kv_size,
    )
    text = pydoc.render_doc("str", renderer=pydoc.plaintext)
    words = tokenizer.encode(text, add_special_tokens=False)[: args.history - ANSWER]
    list(talk.ask("Here is a manual.\n\n" + tokenizer.decode(words)))

    pairs = []
    for turn in range(args.repeat):
        kept = seconds_to_first(talk.ask(QUESTIONS[turn % len(QUESTIONS)]))
        new = talk.kept.prefilled
        ids = talk.rendering.ids(talk.all_messages[:-1])
        fresh = seconds_to_first(
            stream_generate(
                target,
                tokenizer,
                ids,
                1,
                drafting=talk.drafting,
                kv=target.make_kv(args.max_kv_size, exact=True),
                max_kv_size=args.max_kv_size,
            )
        )
        talk.undo()
        pairs.append({"prompt_tokens": len(ids), "new_tokens": new, "kept_seconds": kept, "fresh_seconds": fresh})
        print(f"{new} of {len(ids)} tokens new: kept {kept:.3f} s, fresh {fresh:.3f} s, ratio {kept / fresh:.3f}")
    expected = statistics.median(pair["new_tokens"] / pair["prompt_tokens"] for pair in pairs)
    print(f"expected at least {expected:.3f}, the share of new tokens")
    result = {
        "mode": talk.drafting.mode,
        "ratio": statistics.median(pair["kept_seconds"] / pair["fresh_seconds"] for pair in pairs),
        "expected": expected,
        "pairs": pairs,
        "blas": asdict(blas),
    }
    print(json.dumps(result))


def seconds_to_first(answer: Any) -> float:
    """Until the first token; the rest is not asked for."""
    started = time.perf_counter()
    steps: Iterator[Any] = answer
    with closing(answer):
        next(steps)
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
