"""Try a policy of the pace in seconds: what the model and its layers say is recorded once and played back.

    python benchmarks/replay.py record --prompts FILE.jsonl --out DRAFTS.jsonl [--model MODEL] [--limit N]
                                       [--max-tokens 64]
    python benchmarks/replay.py play DRAFTS.jsonl [--plays 8]

`record` writes what passes and draft steps cost here, then for every prompt its greedy answer and, at every place of
it, the tokens that the model's own layers would draft there and how sure they are (about eleven tokens a second).
`play` runs the pace as it is over them, against a clock that these costs drive: every answer `plays` times, in another
order each time, since what the pace learned from one answer helps or hurts the next. Answers of up to SHORT tokens are
shown one by one; they are what a wrong guess costs most. Last line of stdout: JSON.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, cast

from tqdm import tqdm

from mlx_skipspec.blas import with_openblas

if TYPE_CHECKING:
    from mlx_skipspec.costs import Costs
    from mlx_skipspec.drafters import LayerSkip
    from mlx_skipspec.target import Target

DEEPEST = 5  # most tokens drafted or copied at a place
SHORT = 24
HEARD = 0.03  # of a plain pass: what it costs that the host waits to hear the drafters
NOISE = 0.03  # of a round; a machine only ever loses time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    doing = parser.add_subparsers(required=True)
    recording = doing.add_parser("record")
    recording.add_argument("--prompts", type=Path, required=True)
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--model", help="default: SmolLM2-135M-Instruct, fetched once")
    recording.add_argument("--limit", type=int)
    recording.add_argument("--max-tokens", type=int, default=64)
    recording.set_defaults(run=record)
    playing = doing.add_parser("play")
    playing.add_argument("drafts", type=Path)
    playing.add_argument("--plays", type=int, default=8)
    playing.set_defaults(run=play)
    args = parser.parse_args()
    args.run(args)


def record(args: argparse.Namespace) -> None:
    with_openblas()

    from mlx_skipspec.calibration import measure
    from mlx_skipspec.decode import decode
    from mlx_skipspec.drafters import PromptLookup
    from mlx_skipspec.drafting import choose_drafter
    from mlx_skipspec.loading import read_weights
    from mlx_skipspec.opening import open_model
    from mlx_skipspec.prompts import chat_ids, even_sample, read_prompts

    target, tokenizer = open_model(args.model, "float32")
    read_weights(target)
    skip = cast("LayerSkip", choose_drafter(target, "skip").unpaced)
    costs = measure(target, [PromptLookup(), skip], seconds=5.0)
    made = args.out.with_suffix(".part")
    with made.open("w", encoding="utf-8") as file:
        print(json.dumps(costs.to_json()), file=file)
        for prompt in tqdm(even_sample(list(read_prompts(args.prompts)), args.limit), unit="prompt"):
            ids, kv = list(chat_ids(tokenizer, prompt.text)), target.make_kv()
            stop = tokenizer.eos_token_ids.__contains__
            steps = decode(target, kv, ids, max_tokens=args.max_tokens, stop=stop)
            answer = [token for step in steps for token in step.tokens]
            said = {"id": prompt.id, "task": prompt.task, "ids": ids, "ans": answer}
            print(json.dumps({**said, "drafts": drafts(target, skip, ids, answer)}), file=file, flush=True)
    made.replace(args.out)


def drafts(target: Target, skip: LayerSkip, ids: list[int], answer: list[int]) -> list[list[tuple[int, float]]]:
    """What the layers say behind the answer's first token, its first two, and so on: (token, probability) each."""
    import mlx.core as mx

    text, kv = [*ids, *answer], target.make_kv()
    hidden = target.run(target.embed(mx.array(text[:-1], dtype=mx.uint32)), target.layers, kv)
    mx.eval(hidden, kv.state)
    skip.begin(target, kv)
    found = []
    for at in range(len(text) - 1, len(ids), -1):  # backwards: a cache is easily rewound
        kv.rewind_to(at - 1)
        skip.observe(hidden[:, at - 2 : at - 1])
        drafted = list(skip.tokens(text[:at], min(DEEPEST, len(text) - at)))
        mx.eval(drafted)
        found.append([(int(token.item()), round(float(sure.item()), 4)) for token, sure in drafted])
    return found[::-1]


def play(args: argparse.Namespace) -> None:
    from mlx_skipspec.costs import Costs

    with args.drafts.open(encoding="utf-8") as file:
        costs = Costs.from_json(json.loads(next(file)))
        answers = [json.loads(line) for line in file]
    seconds: dict[str, list[tuple[float, float]]] = {}
    for number in range(args.plays):
        order = random.Random(number).sample(answers, len(answers))
        for id, times in played(order, costs, random.Random(number)):
            seconds.setdefault(id, []).append(times)
    ratios = {id: median(plain / ours for plain, ours in of) for id, of in seconds.items()}
    task = {answer["id"]: answer["task"] for answer in answers}
    short = {answer["id"] for answer in answers if len(answer["ans"]) <= SHORT}
    sums = [[mean(side) for side in zip(*of, strict=True)] for id, of in seconds.items() if id not in short]
    result = {
        "plays": args.plays,
        "speedup": sum(plain for plain, _ in sums) / sum(ours for _, ours in sums) if sums else None,
        "by_task": {
            name: mean(ratios[id] for id in ratios if task[id] == name and id not in short)
            for name in sorted({task[id] for id in ratios if id not in short})
        },
        "short": {id: ratios[id] for id in sorted(short)},
        "worst": sorted((ratio, id) for id, ratio in ratios.items())[:5],
    }
    for group in ("by_task", "short"):
        for name, ratio in cast("dict[str, float]", result[group]).items():
            print(f"{name:28} {ratio:.3f}")
    print(json.dumps(result))


def played(
    answers: Sequence[dict[str, Any]], costs: Costs, noise: random.Random
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Ids, with the seconds that plain decoding and the pace take."""
    import mlx.core as mx

    from mlx_skipspec.decode import agree
    from mlx_skipspec.drafters import LayerSkip, PromptLookup
    from mlx_skipspec.pace import Paced

    class Recorded(LayerSkip):
        """Says what it said then."""

        def __init__(self) -> None:
            self.name, self.dropped = "skip", 0

        def begin(self, target: Target, kv: Any) -> None: ...

        def tokens(self, context: Sequence[int], k: int) -> Any:
            for token, sure in answer["drafts"][len(context) - len(answer["ids"]) - 1][:k]:
                yield mx.array([token], dtype=mx.uint32), mx.array([sure])

        def observe(self, hidden: mx.array) -> None: ...

    now = 0.0
    pace = Paced([PromptLookup(), Recorded()], costs, clock=lambda: now)
    for answer in answers:
        text = [*answer["ids"], *answer["ans"]]
        context, started = text[: len(answer["ids"]) + 1], now
        pace.begin(cast("Target", None), cast("Any", None))
        while (at := len(context)) < len(text):
            silent = pace.silent
            guess = cast("list[int]", pace.draft(context, min(DEEPEST, len(text) - at)).tolist())
            drafted = len(guess) + pace.dropped if pace.name == "skip" else 0
            took = costs.verify(len(guess) + 1, at) + drafted * costs.draft("skip", at)
            took -= HEARD * costs.verify(1, at) if silent and not guess else 0.0
            now += took * (1 + NOISE * abs(noise.gauss()))
            accepted = agree(guess, [*text[at:], -1])
            context += text[at : at + accepted + 1]
            pace.observe(mx.zeros((1, len(context) - at, 1)))
        plain = sum(costs.verify(1, at) for at in range(len(answer["ids"]) + 1, len(text)))
        yield answer["id"], (plain * (1 - HEARD) * (1 + NOISE * 0.8), now - started)


if __name__ == "__main__":
    main()
