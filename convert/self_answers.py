"""The teacher's own answers to a file of prompts: the text it will be asked to draft, so the best text to train on."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mlx_skipspec.convert.world import World
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.prompts import read_prompts, templated

LONGEST_PROMPT = 2048  # tokens; longer ones are left out
BEGIN = b'{"prompt": "'  # of a line
BATCH, BATCH_ROWS = 128, 1 << 16  # answers at a time, and rows of the cache they may take (8.6 GB for an 8B model)


def self_answers(
    model: Any,
    tokenizer: Any,
    prompts: Path,
    out: Path,
    world: World,
    *,
    max_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
) -> None:
    """Append {"prompt", "answer"} lines to `out`, greedy or sampled, prompts of like length together.

    Each process answers its share into a file beside `out`; at the end the first one joins them. Finished batches stay,
    and a second run goes on behind them.

    Raises:
        SkipSpecError: the prompts can't be read, all are too long, or `out` can't be written or is none of ours.
    """
    asked = dict.fromkeys(prompt.text for prompt in read_prompts(prompts))
    mine = out.with_name(f"{out.name}.{world.rank}")
    done = set().union(*(_answered(file) for file in (out, *_parts(out))))
    world.wait()  # before anybody writes
    fitting = [(prompt, ids) for prompt in asked if len(ids := _ids(tokenizer, prompt)) <= LONGEST_PROMPT]
    if not fitting:
        raise SkipSpecError(f"Every prompt of {prompts} is longer than {LONGEST_PROMPT} tokens; need shorter ones.")
    if left := len(asked) - len(fitting):
        world.note(f"{left} of {len(asked)} prompts are longer than {LONGEST_PROMPT} tokens and are left out")
    todo = [item for item in fitting[world.rank :: world.size] if item[0] not in done]
    todo.sort(key=lambda item: len(item[1]))
    torch.manual_seed(seed + len(done) + world.rank)
    try:
        with mine.open("a", encoding="utf-8") as file, tqdm(total=len(todo), unit="answer", disable=None) as bar:
            while todo:
                part = _next_batch(todo, max_tokens)
                todo = todo[len(part) :]
                answers = _generate(model, tokenizer, [ids for _, ids in part], max_tokens, temperature)
                for (prompt, _), answer in zip(part, answers, strict=True):
                    file.write(json.dumps({"prompt": prompt, "answer": answer}, ensure_ascii=False) + "\n")
                file.flush()
                bar.update(len(part))
        world.wait()
        if world.first:
            _join(out)
    except OSError as error:
        raise SkipSpecError(f"Writing {out} failed: {error.strerror}; make room and run again.") from error


def _parts(out: Path) -> list[Path]:
    """The shares of processes, those of a stopped run of more processes too."""
    return sorted(out.parent.glob(f"{glob.escape(out.name)}.[0-9]*"))


def _join(out: Path) -> None:
    """`out` with the shares behind it, under its name when it is whole."""
    together, parts = out.with_name(f"{out.name}.new"), _parts(out)
    there = [file for file in (out, *parts) if os.path.exists(file)]
    lines = dict.fromkeys(line for file in there for line in file.read_bytes().splitlines())
    # each once, also if a kill came before the shares were removed
    together.write_bytes(b"".join(line + b"\n" for line in lines))
    os.replace(together, out)
    for part in parts:
        part.unlink()


def _answered(out: Path) -> set[str]:
    """Prompts `out` has answers to; a last line that was cut short by a kill is dropped from the file."""
    if not os.path.exists(out):
        return set()
    try:
        lines = out.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise SkipSpecError(
            f"{out} cannot be read ({error.strerror}); need a file of answers, or a new name."
        ) from error
    done, whole = set(), 0
    for line in lines:
        if not line.endswith(b"\n") and (line.startswith(BEGIN) or BEGIN.startswith(line)):
            os.truncate(out, whole)
            break
        try:
            done.add(json.loads(line)["prompt"])
        except (ValueError, KeyError, TypeError):
            raise SkipSpecError(f"{out} is no file of answers; need a new name, or one this command made.") from None
        whole += len(line)
    return done


def _ids(tokenizer: Any, prompt: str) -> list[int]:
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(prompt))
    messages = [{"role": "user", "content": prompt}]
    return list(templated(tokenizer, messages, add_generation_prompt=True, return_dict=False))


def _next_batch(todo: Sequence[tuple[str, list[int]]], max_tokens: int) -> Sequence[tuple[str, list[int]]]:
    """As many of the first ones as may be answered together; they come shortest first."""
    rows = (min(len(todo), n) * (len(todo[min(len(todo), n) - 1][1]) + max_tokens) for n in range(1, BATCH + 1))
    return todo[: max(sum(1 for needed in rows if needed <= BATCH_ROWS), 1)]


def _generate(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float
) -> Iterator[str]:
    """Answers to a batch, padded on the left."""
    width = max(len(ids) for ids in prompts)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            pad_token_id=pad,
            cache_implementation="static",
            **(sampling or {"do_sample": False}),
        )
    for row in out[:, width:]:
        yield tokenizer.decode(row, skip_special_tokens=True)
