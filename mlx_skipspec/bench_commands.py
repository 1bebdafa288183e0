"""The commands that measure: bench and doctor."""

from __future__ import annotations

import gc
import json
from collections import Counter
from pathlib import Path

import mlx.core as mx
from tqdm import tqdm

from mlx_skipspec import opening
from mlx_skipspec.api import check_ids, encode
from mlx_skipspec.bench import Bench, Item, Pair, drafters_in
from mlx_skipspec.bench_report import check_plot, plot, table
from mlx_skipspec.bench_stats import as_json
from mlx_skipspec.blas import NO_SPEED_UP, Blas, blas_in_use
from mlx_skipspec.calibration import measure
from mlx_skipspec.cli import note, say
from mlx_skipspec.cost_files import costs_for, machine
from mlx_skipspec.doctor import advice, examine, examine_model, text
from mlx_skipspec.drafting import check_choice, choose_drafter
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.loading import read_weights
from mlx_skipspec.prompts import chat_ids, even_sample, read_prompts

MEASURING_SECONDS = 10.0  # of v and d for the prediction, longer than the pace may take


def bench(
    blas: Blas,
    model: str | None,
    dtype: str,
    prompts: Path,
    limit: int | None,
    max_tokens: int,
    repeat: int,
    drafter: str,
    draft_tokens: int,
    plan: str | None,
    sidecar: Path | None,
    head: str,
    max_kv_size: int | None,
    as_json_wanted: bool,
    plot_file: Path | None,
) -> None:
    check_choice(drafter, plan, sidecar, head)
    if plot_file is not None:
        check_plot(plot_file)
    asked = even_sample(list(read_prompts(prompts)), limit)
    _check_names(prompts, [prompt.id for prompt in asked])
    target, tokenizer = opening.open_model(model, dtype)
    items = [
        Item(id_, task, chat_ids(tokenizer, asks) if tokenizer.has_chat_template else encode(tokenizer, asks))
        for id_, asks, task in asked
    ]
    for item in items:
        check_ids(target, item.tokens, max_kv_size)
    if blas.is_reference and mx.default_device() == mx.cpu:
        note(f"note: {NO_SPEED_UP}")
    read_weights(target)
    gc.collect()  # arrays nobody holds any more would count as weights
    weights_bytes = mx.get_active_memory()
    drafting = choose_drafter(target, drafter, plan=plan, sidecar=sidecar, head=head)
    drafters = drafters_in(drafting.drafter)
    costs_for(target, drafters, recalibrate=True)  # those the pace will find
    costs = measure(target, drafters, seconds=MEASURING_SECONDS)
    run = Bench(
        target,
        tokenizer,
        drafting,
        weights_bytes=weights_bytes,
        draft_tokens=draft_tokens,
        max_tokens=max_tokens,
        max_kv_size=max_kv_size,
    )
    pairs, interrupted = [], False
    try:
        with tqdm(total=repeat * len(items), unit="pair", desc=f"mode {drafting.mode}") as bar:
            for pair in run.pairs(items, repeat):
                pairs.append(pair)
                bar.set_postfix_str(_gain(pair), refresh=False)
                bar.update()
    except KeyboardInterrupt:
        if not pairs:
            raise
        interrupted = True
    result = as_json(
        pairs,
        costs=costs,
        drafters=[one.name for one in drafters],
        draft_tokens=draft_tokens,
        blas=blas,
        device={key: value for key, value in machine().items() if key != "host"},
        mode=drafting.mode,
        model=Path(model).name if model else "SmolLM2-135M-Instruct",
        dtype=str(target.dtype).rpartition(".")[2],
        max_tokens=max_tokens,
        repeat=repeat,
    )
    say(json.dumps(result) if as_json_wanted else table(result))
    if plot_file is not None:
        plot(result, plot_file)
    if interrupted:
        raise KeyboardInterrupt


def _gain(pair: Pair) -> str:
    plain, ours = pair.plain.generation_tok_s, pair.ours.generation_tok_s
    return f"mlx-lm {plain:.1f}, ours {ours:.1f} tok/s" if plain and ours else ""


def _check_names(file: Path, names: list[str]) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise SkipSpecError(f'{file} has "id" {twice[0]!r} more than once; need one of its own for every prompt.')


def doctor(model: str | None, dtype: str, as_json_wanted: bool) -> None:
    found = examine(blas_in_use())
    if model is not None:
        target, _ = opening.open_model(model, dtype)
        read_weights(target)
        found["model"] = examine_model(target, Path(model).name)
    found["advice"] = advice(found)
    say(json.dumps(found, ensure_ascii=False) if as_json_wanted else text(found))
