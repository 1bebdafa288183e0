"""The teacher's own answers to a file of prompts: the text it will be asked to draft, so the best text to train on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.prompts import read_prompts, templated

LONGEST_PROMPT = 1024  # tokens; longer ones are left out


def self_answers(
    model: Any,
    tokenizer: Any,
    prompts: Path,
    out: Path,
    *,
    max_tokens: int = 256,
    temperature: float = 0.0,
    batch: int = 32,
    seed: int = 0,
) -> int:
    """Append {"prompt", "answer"} lines to `out`, greedy or sampled, prompts of like length together.

    Finished batches stay in the file, and a second run goes on behind them. Returns how many answers it holds.

    Raises:
        SkipSpecError: the prompts can't be read, all are too long, or `out` can't be written or is none of ours.
    """
    asked = [prompt for _, prompt in read_prompts(prompts)]
    done = _answered(out)
    with_ids = [(prompt, _ids(tokenizer, prompt)) for prompt in dict.fromkeys(asked) if prompt not in done]
    todo = sorted((item for item in with_ids if len(item[1]) <= LONGEST_PROMPT), key=lambda item: len(item[1]))
    if not todo and not done:
        raise SkipSpecError(f"Every prompt of {prompts} is longer than {LONGEST_PROMPT} tokens; need shorter ones.")
    torch.manual_seed(seed + len(done))
    try:
        with out.open("a", encoding="utf-8") as file, tqdm(total=len(todo), unit="answer", disable=None) as bar:
            for start in range(0, len(todo), batch):
                part = todo[start : start + batch]
                answers = _generate(model, tokenizer, [ids for _, ids in part], max_tokens, temperature)
                for (prompt, _), answer in zip(part, answers, strict=True):
                    file.write(json.dumps({"prompt": prompt, "answer": answer}, ensure_ascii=False) + "\n")
                file.flush()
                bar.update(len(part))
    except OSError as error:
        raise SkipSpecError(f"Writing {out} failed: {error.strerror}; make room and run again.") from error
    return len(done) + len(todo)


def _answered(out: Path) -> set[str]:
    """Prompts `out` has answers to; a last line that was cut short by a kill is dropped from the file."""
    if not os.path.exists(out):
        return set()
    done, whole = set(), 0
    with out.open("rb") as lines:
        for line in lines:
            try:
                done.add(json.loads(line)["prompt"])
            except (ValueError, KeyError, TypeError):
                if not line.endswith(b"\n"):
                    break
                raise SkipSpecError(
                    f"{out} is no file of answers; need a new name, or one this command made."
                ) from None
            whole += len(line)
    os.truncate(out, whole)
    return done


def _ids(tokenizer: Any, prompt: str) -> list[int]:
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(prompt))
    messages = [{"role": "user", "content": prompt}]
    return list(templated(tokenizer, messages, add_generation_prompt=True, return_dict=False))


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
